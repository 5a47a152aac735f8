"""The pictures in the documents: the configuration `simulated`, whose endpoints replay a text that can be read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.browser.conftest import Visit
from tests.browser.support import ask, finished
from tests.support.local_http import local_http
from tests.support.local_service import read_config

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

MOST_BYTES = 200_000
#: Which side wins a race is drawn from measurements.
TRIES = 8
TEXT = (
    "Sunlight looks white, but it is a mixture of all colours. On its way to us it meets the molecules of the air, and "
    "they scatter light in every direction. They do so far more strongly for short waves than for long ones: blue "
    "light is scattered about four times as much as red light. So wherever we look, away from the sun, it is mostly "
    "blue light that reaches our eyes. In the evening the sun stands low, and its light crosses much more air before "
    "it arrives. Most of the blue has been scattered out of it by then, and what is left for us is orange and red. "
    "Violet waves are shorter still than blue ones, but the sun sends fewer of them, and our eyes see them less well."
)
PROMPTS = (
    "Write a short story about a lighthouse.",
    "Explain what a rainbow is.",
    "Give me three tips for a good night's sleep, and say for each of them why it helps and how long it takes to work.",
    "What is the capital of France, and what is it known for?",
    "Summarise in a few sentences, for somebody who has never been there, what one can see, eat and do in a weekend in "
    "Lisbon, and what one should better leave for another time because it takes too long or is too far away.",
    "Name a fruit.",
)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    tokens = re.findall(r"\s*\S+?(?=\s|[.,:]|$)|[.,:]", TEXT)
    assert "".join(tokens) == TEXT
    recording = tmp_path / "sky.jsonl"
    recording.write_text(json.dumps({"ttft": 0.0, "gaps": [0.0] * (len(tokens) - 1), "tokens": tokens}))
    args, live = read_config("simulated.yaml")
    for endpoint in args["endpoints"].values():
        endpoint["engine"]["engine"] = {"type": "replay", "path": str(recording)}
    with local_http(args, live) as url:
        yield url


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    chosen: Path | None = request.config.getoption("--pictures", None)
    return chosen or tmp_path


def keep(page: Page, path: Path) -> None:
    page.screenshot(path=path, animations="disabled")
    assert 5_000 < path.stat().st_size < MOST_BYTES, f"{path.name}: {path.stat().st_size} bytes"


@pytest.mark.timeout(300)
def test_pictures(url: str, visit: Callable[..., Visit], folder: Path) -> None:
    from playwright.sync_api import expect

    page = visit(url, viewport={"width": 1120, "height": 1000}, color_scheme="light").page
    expect(page.get_by_label("Model")).to_have_value("disco")
    for _ in range(TRIES):
        ask(page, tokens=120)
        finished(page)
        if page.locator("#answer .seam").count():
            break
    else:
        pytest.fail("the phone never won a race and moved on")
    page.evaluate("() => document.activeElement.blur()")
    keep(page, folder / "playground.png")

    for prompt in PROMPTS:
        body: dict[str, Any] = {"model": "disco", "max_tokens": 30, "messages": [{"role": "user", "content": prompt}]}
        httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).raise_for_status()
    page.emulate_media(color_scheme="dark")
    page.get_by_role("link", name="Live").click()
    expect(page.locator("#plans .curve")).to_have_count(2)
    keep(page, folder / "live.png")
