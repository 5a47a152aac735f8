"""Services for the page, and what a visitor does with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Page

#: The phone wins every race and is dear, so the answer moves to the cloud. Slow enough to be watched.
ENDPOINTS: dict[str, Any] = {
    "cloud": {
        "kind": "cloud",
        "slots": 4,
        "engine": {"type": "simulated", "seed": 3, "overhead": 1.2, "decode_rate": 60, "can_park": False},
    },
    "phone": {
        "kind": "device",
        "slots": 4,
        "engine": {"type": "simulated", "seed": 3, "overhead": 0.8, "decode_rate": 40},
    },
}
LIVE: dict[str, Any] = {
    "policy": {"budget": 1.0},
    "prices": {
        "usd_per_megajoule": 5000.0,
        "notional": True,
        "endpoints": {
            "cloud": {"input_usd_per_mtok": 0.1, "output_usd_per_mtok": 0.4},
            "phone": {"prefill_joules_per_token": 0.1, "decode_joules_per_token": 0.1},
        },
    },
}
ARGS: dict[str, Any] = {"endpoints": ENDPOINTS}


def ask(page: Page, prompt: str = "Why is the sky blue?", tokens: int = 60) -> None:
    page.get_by_label("Longest answer").fill(str(tokens))
    page.get_by_label("Prompt", exact=True).fill(prompt)
    page.get_by_label("Prompt", exact=True).press("Enter")


def finished(page: Page) -> None:
    """Wait for the end of an answer."""
    from playwright.sync_api import expect

    expect(page.locator("#stop")).to_be_disabled(timeout=90_000)


def written(page: Page) -> str:
    """The answer, without the labels on its seams."""
    return "".join(page.locator("#answer .piece").all_text_contents())
