"""What a migration costs the router: from the trigger, which starts the target, to the target's Accepted.

    python -m benchmarks.handoff [--migrations 60] [--tokens 512]

The production session, driver and ``ServeEndpoint`` over real Serve handles to two simulated endpoints. Each stream is
moved once its buffer holds ``--tokens`` tokens, in both modes by turns. The reference is a plain handle call without a
buffer, from the call to its first item, in the same run. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

from benchmarks.direct import handle, with_endpoints
from benchmarks.load import Spread
from serve_app.cli.launch import prepare
from serve_app.core.cost import CostModel, UnitCost
from serve_app.core.endpoint import Endpoint
from serve_app.core.latency import LatencyProfile, LinearTtft
from serve_app.core.legs import Leg, LegReason
from serve_app.core.migration import MigrationDecision, MigrationMode, Mover, StreamState, Verdict
from serve_app.core.model import (
    DispatchPlan,
    EndpointId,
    EndpointInfo,
    EndpointKind,
    GenerationRequest,
    Launch,
    Receipt,
    Sampling,
    StreamItem,
    TextPrompt,
)
from serve_app.core.protocol import SessionConfig
from serve_app.core.session import StreamSession
from serve_app.driver import StreamDriver, StreamJob
from serve_app.engine_settings import SimulatedEngineSettings
from serve_app.settings import AppSettings, EndpointPrice, EndpointSettings, LiveSettings, PriceSettings

SOURCE: Final = "source"
TARGET: Final = "target"
MODES: Final = (MigrationMode.OVERLAP, MigrationMode.BREAK)

_PROMPT: Final = TextPrompt("the bridge over the river")
_PROFILE: Final = LatencyProfile(LinearTtft(0.0, 0.01), 1000.0, 50.0)


@dataclass(frozen=True, slots=True)
class MoveAt(Mover):
    """Moves to a cheaper endpoint as soon as ``at`` tokens are accepted, whatever it saves."""

    at: int = 0

    def consider(
        self,
        source: EndpointInfo,
        target: EndpointInfo,
        state: StreamState,
        *,
        parked: float | None = None,  # noqa: ARG002 - nothing is parked here
    ) -> MigrationDecision:
        ripe = state.accepted >= self.at and not state.open_character and self.is_cheaper(target.id, source.id)
        return MigrationDecision(Verdict.GO if ripe else Verdict.BUFFER, target.id)


class Stopwatch:
    """Sees the target's start as the driver's observer, and its receipt as the endpoint. Seconds of ``perf_counter``.

    The session's own clock will not do: uvloop's counts whole milliseconds.
    """

    def __init__(self, target: Endpoint) -> None:
        self._target = target
        self.triggered = 0.0
        self.accepted: float | None = None

    @property
    def info(self) -> EndpointInfo:
        return self._target.info

    def leg_started(self, leg: Leg) -> dict[str, str]:
        if leg.reason is LegReason.MIGRATION:
            self.triggered = time.perf_counter()
        return {}

    def leg_ended(self, _: Leg) -> None:
        return

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[StreamItem, None]:
        async with aclosing(self._target.generate(request)) as items:
            async for item in items:
                if isinstance(item, Receipt):
                    self.accepted = time.perf_counter()
                yield item


def settings() -> tuple[AppSettings, LiveSettings]:
    engine = SimulatedEngineSettings(
        prefill_rate=1e6, decode_rate=1000.0, overhead=0.0, output_tokens=(8000, 8000), context_length=16_384
    )
    dear = EndpointSettings(kind=EndpointKind.CLOUD, engine=engine, slots=8)
    cheap = EndpointSettings(kind=EndpointKind.DEVICE, engine=engine, slots=8)
    prices = PriceSettings(endpoints={SOURCE: EndpointPrice(output_usd_per_mtok=10.0), TARGET: EndpointPrice()})
    return AppSettings(endpoints={SOURCE: dear, TARGET: cheap}), LiveSettings(prices=prices)


async def migrate(endpoints: Mapping[EndpointId, Endpoint], mode: MigrationMode, tokens: int, number: int) -> float:
    """Seconds from the trigger to the target's Accepted, once the target has also taken over.

    The reader is so slow, and the source's allowance such, that the source rests when the buffer holds ``tokens``.
    """
    costs = CostModel({SOURCE: UnitCost(0.0, 1.0), TARGET: UnitCost(0.0, 0.0)})
    mover = MoveAt(mode, 0.0, costs, lambda _: _PROFILE, lambda n, most: float(most - n), lambda _: False, at=tokens)
    plan = DispatchPlan((Launch(SOURCE),), "benchmark", "benchmark")
    config = SessionConfig(4 * tokens, prompt_tokens=8, rate=0.5, ahead_tokens=2 * (tokens + 8))
    infos = [endpoints[name].info for name in (SOURCE, TARGET)]
    session = StreamSession(f"handoff-{number}", config, plan, infos, mover)
    watch = Stopwatch(endpoints[TARGET])
    watched = {**endpoints, TARGET: watch}
    driver = StreamDriver(session, StreamJob(_PROMPT, Sampling(config.max_tokens)), watched, watch)
    driver.start()
    try:
        async for _ in driver:
            if session.migrations and session.migrations[0].outcome == "completed":
                break
    finally:
        await driver.aclose()
    record = session.migrations[0]
    if record.outcome != "completed" or watch.accepted is None or record.at_token < tokens:
        raise RuntimeError(f"migration {number} was not carried out: {record.outcome}")
    return watch.accepted - watch.triggered


async def first_item(handle: Any, number: int) -> float:
    """Seconds from a plain handle call to its first item."""
    request = GenerationRequest(f"plain-{number}", _PROMPT, Sampling(64))
    began = time.perf_counter()
    response = handle.options(stream=True, method_name="generate").remote(request)
    await response.__anext__()
    seconds = time.perf_counter() - began
    response.cancel()
    return seconds


async def measure(migrations: int, tokens: int, endpoints: Mapping[EndpointId, Endpoint]) -> dict[str, Any]:
    target = handle(TARGET)
    found: dict[str, list[float]] = {"plain": [], **{mode.value: [] for mode in MODES}}
    for number in range(-len(MODES), migrations):
        mode = MODES[number % len(MODES)]
        plain = await first_item(target, number + len(MODES))
        moved = await migrate(endpoints, mode, tokens, number + len(MODES))
        if number >= 0:  # the first of each kind opens connections
            found["plain"].append(plain)
            found[mode.value].append(moved)
    moves = [seconds for mode in MODES for seconds in found[mode.value]]
    spreads = {"migration": Spread.of(moves), **{name: Spread.of(each) for name, each in found.items()}}
    return {name: asdict(spread) for name, spread in spreads.items() if spread} | {"migrations": len(moves)}


def main() -> None:
    parser = argparse.ArgumentParser(description="From a migration's trigger to the target's Accepted.")
    parser.add_argument("--migrations", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=512, help="tokens in the buffer that travels")
    arguments = parser.parse_args()
    prepare()
    busy = os.getloadavg()[0]
    result = with_endpoints(*settings(), partial(measure, arguments.migrations, arguments.tokens))
    for name in ("migration", *(mode.value for mode in MODES), "plain"):
        print(f"{name:10} p50 {result[name]['p50']:7.2f} ms   p99 {result[name]['p99']:7.2f} ms")
    print(json.dumps(result | {"tokens": arguments.tokens, "load_before": round(busy, 2)}))


if __name__ == "__main__":
    main()
