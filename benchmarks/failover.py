"""What the death of a replica costs one stream: until the router knows, and until the reader has the next token.

    python -m benchmarks.failover [--kills 20]

The production session, driver and ``ServeEndpoint`` over real Serve handles to two simulated endpoints. Each stream's
replica is killed with SIGKILL amid its answer, and the other endpoint carries on. Beside it, from the same streams, the
time to the first token when nothing is wrong. ``benchmarks.chaos`` does it to a whole service under load. The last line
is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final

from benchmarks.direct import with_endpoints
from benchmarks.load import Spread
from serve_app.cli.launch import prepare
from serve_app.core.cost import CostModel
from serve_app.core.endpoint import Endpoint
from serve_app.core.errors import EndpointUnavailable
from serve_app.core.latency import LatencyProfile, LinearTtft
from serve_app.core.legs import Leg
from serve_app.core.migration import Mover
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
from serve_app.settings import AppSettings, EndpointSettings, LiveSettings

VICTIM: Final = "victim"
RESCUER: Final = "rescuer"

#: Tokens that the reader has when the replica is killed, and of the whole answer.
AT, TOKENS = 20, 60

#: Seconds in which Serve replaces a replica that was killed.
REPLACED: Final = 60.0

_PROFILE: Final = LatencyProfile(LinearTtft(0.0, 0.2), 1e4, 20.0)

#: Only need moves a stream.
STAYS: Final = Mover(None, 0.0, CostModel({}), lambda _: _PROFILE, lambda n, most: float(most - n), lambda _: False)

_PROMPT: Final = TextPrompt("the bridge over the river")


@dataclass
class Witness:
    """The victim as the driver reaches it. Seconds of ``perf_counter``: when the stream began, and broke."""

    endpoint: Endpoint
    began: float = 0.0
    broke: float = 0.0
    #: Of the replica.
    pid: int = 0

    @property
    def info(self) -> EndpointInfo:
        return self.endpoint.info

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[StreamItem, None]:
        self.began = time.perf_counter()
        try:
            async with aclosing(self.endpoint.generate(request)) as items:
                async for item in items:
                    if isinstance(item, Receipt):
                        self.pid = int(item.replica.rpartition(":")[2])
                    yield item
        except EndpointUnavailable:
            self.broke = time.perf_counter()
            raise


class Nobody:
    """Observes nothing."""

    def leg_started(self, _: Leg) -> dict[str, str]:
        return {}

    def leg_ended(self, _: Leg) -> None:
        return


@dataclass
class Found:
    """Seconds."""

    ttft: list[float] = field(default_factory=list)
    noticed: list[float] = field(default_factory=list)
    resumed: list[float] = field(default_factory=list)


def settings() -> tuple[AppSettings, LiveSettings]:
    engine = SimulatedEngineSettings(
        seed=1, prefill_rate=1e4, decode_rate=20.0, overhead=0.2, jitter=0.0, output_tokens=(1000, 1000)
    )
    endpoint = EndpointSettings(kind=EndpointKind.CLOUD, engine=engine, slots=8)
    return AppSettings(endpoints={VICTIM: endpoint, RESCUER: endpoint}), LiveSettings()


async def kill_one(endpoints: Mapping[EndpointId, Endpoint], number: int, found: Found) -> None:
    witness = Witness(endpoints[VICTIM])
    plan = DispatchPlan((Launch(VICTIM),), "benchmark", "benchmark")
    infos = [endpoints[name].info for name in (VICTIM, RESCUER)]
    session = StreamSession(f"failover-{number}", SessionConfig(TOKENS, prompt_tokens=8), plan, infos, STAYS)
    job = StreamJob(_PROMPT, Sampling(TOKENS))
    driver = StreamDriver(session, job, {**endpoints, VICTIM: witness}, Nobody())
    killed: float | None = None
    shown = 0
    driver.start()
    try:
        async for emit in driver:
            now = time.perf_counter()
            if shown == 0:
                found.ttft.append(now - witness.began)
            if killed is not None and emit.endpoint == RESCUER:
                found.noticed.append(witness.broke - killed)
                found.resumed.append(now - killed)
                return
            shown = emit.index + emit.count
            if killed is None and shown >= AT:
                killed = time.perf_counter()
                os.kill(witness.pid, signal.SIGKILL)
    finally:
        await driver.aclose()
    raise RuntimeError("the stream ended before its replica was killed")


async def replaced(endpoint: Endpoint) -> None:
    """Until another replica answers."""
    give_up = time.monotonic() + REPLACED
    while True:
        try:
            request = GenerationRequest("probe", _PROMPT, Sampling(1))
            async with aclosing(endpoint.generate(request)) as items:
                async for _ in items:
                    pass
        except EndpointUnavailable:
            if time.monotonic() > give_up:
                raise
            await asyncio.sleep(0.2)
        else:
            return


async def measure(kills: int, endpoints: Mapping[EndpointId, Endpoint]) -> Found:
    for endpoint in endpoints.values():  # the first call opens connections
        await replaced(endpoint)
    found = Found()
    for number in range(kills):
        await kill_one(endpoints, number, found)
        await replaced(endpoints[VICTIM])
    return found


@contextmanager
def _silent_ray() -> Iterator[None]:
    """It tells every death, with advice, on whatever stream it had when it was imported."""
    sys.stdout.flush()
    kept = {stream: os.dup(stream) for stream in (1, 2)}
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in kept:
        os.dup2(nowhere, stream)
    try:
        yield
    finally:
        sys.stdout.flush()
        for stream, original in kept.items():
            os.dup2(original, stream)
            os.close(original)
        os.close(nowhere)


def main() -> None:
    parser = argparse.ArgumentParser(description="What the death of a replica costs one stream.")
    parser.add_argument("--kills", type=int, default=20)
    kills = parser.parse_args().kills
    prepare()
    busy = os.getloadavg()[0]
    with _silent_ray():
        found = with_endpoints(*settings(), partial(measure, kills))
    spreads = {name: Spread.of(seconds) for name, seconds in asdict(found).items()}
    figures: dict[str, Any] = {f"{name}_ms": asdict(spread) for name, spread in spreads.items() if spread}
    for name, label in (("noticed", "until known"), ("resumed", "next token"), ("ttft", "first token")):
        spread = figures[f"{name}_ms"]
        print(f"{label:12} p50 {spread['p50']:7.1f} ms   p99 {spread['p99']:7.1f} ms")
    print(json.dumps(figures | {"kills": kills, "load_before": round(busy, 2)}))


if __name__ == "__main__":
    main()
