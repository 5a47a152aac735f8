"""The default configuration in both regimes, on the real model: what became of every stream, and of the budget.

    python -m benchmarks.regimes [--requests 200] [--together 2] [--config disco]

The reference, measured in the same run: each request's answer when the constrained side is left out, as the policy's
own unconstrained side alone would have given it (the leg that was dispatched there).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
from rich.console import Console
from rich.table import Table

from benchmarks.processes import Server, python
from benchmarks.stack import free_ports, mode_environment, write_configuration
from serve_app.cli import ready
from serve_app.cli.configfile import load

#: USD per million joules: a joule that is dear makes the device the constrained side.
REGIMES: Final = {"device-constrained": 5000.0, "server-constrained": 0.05}
SEED: Final = 20250217
TOPICS: Final = (
    "a lighthouse", "the tides", "old maps", "bread", "the moon", "bees", "a violin", "glaciers", "a small town",
)  # fmt: skip
_DISPATCHED: Final = {"dispatch", "hedge", "retry"}


def prompts(count: int) -> list[str]:
    """Seeded questions of about 45 to 80 tokens, the chat template included."""
    draw = random.Random(SEED)
    return [
        f"Question {number}: tell me about {', '.join(draw.choices(TOPICS, k=draw.randint(1, 10)))}."
        for number in range(count)
    ]


async def ask(http: aiohttp.ClientSession, url: str, prompt: str) -> dict[str, Any] | None:
    """The report of one stream; None unless it was complete."""
    body = {
        "model": "disco",
        "stream": True,
        "max_tokens": 64,
        "temperature": 0,
        "disco": {"report": True},
        "messages": [{"role": "user", "content": prompt}],
    }
    last: dict[str, Any] = {}
    done = False
    async with http.post(f"{url}/v1/chat/completions", json=body) as response:
        async for line in response.content:
            if line.startswith(b"data: {"):
                last = json.loads(line[len(b"data: ") :])
            done = done or line.startswith(b"data: [DONE]")
    report: dict[str, Any] | None = last.get("disco")
    return report if done and report is not None and "legs" in report else None


async def play(url: str, requests: int, together: int) -> list[dict[str, Any] | None]:
    turns = asyncio.Semaphore(together)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as http:

        async def one(prompt: str) -> dict[str, Any] | None:
            async with turns:
                return await ask(http, url, prompt)

        return await asyncio.gather(*(one(prompt) for prompt in prompts(requests)))


async def leftovers(url: str) -> float:
    """Streams that the router still counts as running, when all have ended."""
    async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics") as response:
        lines = (await response.text()).splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("disco_streams_running ")))


def figures(regime: str, reports: Sequence[dict[str, Any] | None], budget: float) -> dict[str, Any]:
    """Counts, and the prompt tokens of the constrained side as a share of all."""
    whole = [report for report in reports if report is not None]
    constrained = "device" if regime == "device-constrained" else "cloud"
    total = sum(report["prompt_tokens"] for report in whole)
    spent = sum(
        leg["prefill_tokens"]
        for report in whole
        for leg in report["legs"]
        if leg["kind"] == constrained and leg["reason"] in _DISPATCHED
    )
    ttfts = sorted(report["ttft_s"] for report in whole)
    alone = sorted(
        leg["ttft_s"]
        for report in whole
        for leg in report["legs"]
        if leg["kind"] != constrained and leg["reason"] in _DISPATCHED and leg["ttft_s"] is not None
    )
    counts: Counter[str] = Counter()
    for report in whole:
        counts[f"wins_{report['winner']}"] += 1
        counts[f"hedge_{report['hedge']}"] += 1
        counts["imitation_late"] += any(leg["imitation_late_s"] > 0 for leg in report["legs"])
        counts["delayed_tokens"] += report["delay_num"]
        for move in report["migrations"]:
            counts[f"{move['from']}_to_{move['to']}_{move['reason']}_{move['outcome']}"] += 1
    largest = max(report["prompt_tokens"] for report in whole)
    return {
        "requests": len(reports),
        "complete": len(whole),
        "budget_share": budget,
        "spent_share": round(spent / total, 4),
        "allowed_share": round(budget + largest / total, 4),
        "ttft_mean_s": round(sum(ttfts) / len(ttfts), 4),
        "ttft_p99_s": round(ttfts[-1 - len(ttfts) // 100], 4),
        "reference_unconstrained_legs": len(alone),
        "reference_ttft_mean_s": round(sum(alone) / len(alone), 4) if alone else None,
        "reference_ttft_p99_s": round(alone[-1 - len(alone) // 100], 4) if alone else None,
        **dict(sorted(counts.items())),
    }


def measure(config: str, regime: str, requests: int, together: int, directory: Path) -> dict[str, Any]:
    configuration = load(config)
    prices = configuration.live.prices.model_copy(update={"usd_per_megajoule": REGIMES[regime]})
    live = configuration.live.model_copy(update={"prices": prices})
    (port,) = free_ports(1)
    file = directory / f"{regime}.yaml"
    write_configuration(file, port, configuration.app, live)
    environment = mode_environment(directory, haproxy=False)
    server = Server(python("benchmarks.stack", str(file)), environment, directory / f"{regime}.log")
    url = ready.base_url("127.0.0.1", port)
    try:
        server.wait_until(lambda: (state := ready.ask(url)) is not None and state.ready and not state.waiting)
        reports = asyncio.run(play(url, requests, together))
        open_streams = asyncio.run(leftovers(url))
    finally:
        server.end()
    return figures(regime, reports, live.policy.budget) | {"open_afterwards": open_streams}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--together", type=int, default=2)
    parser.add_argument("--config", default="disco")
    options = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory(prefix="disco-regimes-") as directory:
        for regime in REGIMES:
            results[regime] = measure(options.config, regime, options.requests, options.together, Path(directory))
    table = Table("figure", *results)
    for key in dict.fromkeys(key for result in results.values() for key in result):
        table.add_row(key, *(str(result.get(key, "")) for result in results.values()))
    Console().print(table)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
