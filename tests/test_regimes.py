"""The default configurations show what this project is about, in either regime, with one line changed.

The engines behind the imitated latencies are simulated, so virtual time passes at once; the timing is the profiles'.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from actors.engines.base import Engine
from actors.engines.factory import make_engine
from actors.engines.shaped import ShapedEngine
from serve_app.engine_settings import EngineSettings, ShapedEngineSettings, SimulatedEngineSettings
from serve_app.streams import Outcome
from tests.support.local_service import LocalService, local_service, read_config
from tests.support.virtual_loop import run_virtual

DEVICE_DEAR, CLOUD_DEAR = 5000.0, 0.05


def shaped_simulation(settings: EngineSettings, slots: int, threads: int) -> Engine:
    """The configured profile over a simulated engine, whatever engine the file names."""
    assert isinstance(settings, ShapedEngineSettings)
    quick = SimulatedEngineSettings(seed=7, overhead=0.0, prefill_rate=100_000.0, decode_rate=1000.0)
    return ShapedEngine(settings, make_engine(quick, slots, threads))


def play(
    config: str, usd_per_megajoule: float, requests: int, *, together: int = 1
) -> tuple[list[Outcome], LocalService]:
    """Seeded prompts of 10 to 120 tokens, ``together`` at a time, each read to its end."""
    args, live = read_config(config)
    live["prices"]["usd_per_megajoule"] = usd_per_megajoule
    draw = random.Random(20250217)
    words = [draw.randint(2, 28) for _ in range(requests)]

    async def main() -> tuple[list[Outcome], LocalService]:
        local = await local_service(args, live, shaped_simulation)
        turns = asyncio.Semaphore(together)

        async def one(number: int) -> Outcome:
            async with turns:
                text, outcome = await local.ask(words[number], number)
                assert text
                return outcome

        return list(await asyncio.gather(*(one(number) for number in range(requests)))), local

    return run_virtual(main())


def seen(outcomes: list[Outcome]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        report: dict[str, Any] = outcome.report
        counts[f"win {report['winner']}"] += 1
        counts[f"hedge {report['hedge']}"] += 1
        for move in report["migrations"]:
            counts[f"{move['from']} to {move['to']} {move['outcome']}"] += 1
    return counts


@pytest.mark.parametrize("config", ["disco.yaml", "simulated.yaml"])
def test_fifty_prompts_show_everything_when_the_device_is_dear(config: str) -> None:
    counts = seen(play(config, DEVICE_DEAR, 50)[0])
    for event in ("win cloud", "win phone", "hedge fired", "hedge not_needed", "phone to cloud completed"):
        assert counts[event], (event, counts)


@pytest.mark.parametrize("config", ["disco.yaml", "simulated.yaml"])
def test_fifty_prompts_show_everything_when_the_cloud_is_dear(config: str) -> None:
    counts = seen(play(config, CLOUD_DEAR, 50)[0])
    for event in ("win cloud", "win phone", "cloud to phone completed"):
        assert counts[event], (event, counts)


@pytest.mark.parametrize("together", [1, 8])
@pytest.mark.parametrize("usd_per_megajoule", [DEVICE_DEAR, CLOUD_DEAR])
def test_two_hundred_requests_keep_the_budget_and_leave_nothing_behind(usd_per_megajoule: float, together: int) -> None:
    outcomes, local = play("disco.yaml", usd_per_megajoule, 200, together=together)
    assert all(outcome.finish_reason in ("stop", "length") for outcome in outcomes)
    constrained = "device" if usd_per_megajoule == DEVICE_DEAR else "cloud"
    dispatched = {"dispatch", "hedge", "retry"}
    prompts = [outcome.report["prompt_tokens"] for outcome in outcomes]
    spent = sum(
        leg["prefill_tokens"]
        for outcome in outcomes
        for leg in outcome.report["legs"]
        if leg["kind"] == constrained and leg["reason"] in dispatched
    )
    assert spent <= local.live.policy.budget * sum(prompts) + max(prompts)
    for endpoint in local.endpoints.values():
        assert not endpoint.replica._legs
