"""Many streams while endpoints die and come back, on virtual time; `make chaos` does the same to real processes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

from actors.engines.simulated import SimulatedEngine
from actors.handles import described, expected_info
from actors.refusal import Refusal
from actors.replica import EndpointReplica
from benchmarks.chaos_client import Errand, Judge, Seen, errands, tally
from serve_app.core.breaker import BreakerState
from serve_app.core.errors import EndpointUnavailable
from serve_app.core.model import EndpointKind, GenerationRequest, StreamItem, TokenChunk
from serve_app.engine_settings import SimulatedEngineSettings
from serve_app.settings import EndpointSettings
from tests.support.scripted_service import Answer, Stack
from tests.support.virtual_loop import run_virtual

ENGINE = SimulatedEngineSettings(seed=5, overhead=0.2, decode_rate=30.0, output_tokens=(20, 60))
LIVE: dict[str, Any] = {
    "policy": {"name": "auto", "budget": 0.5},
    "migration": {"mode": "overlap"},
    "limits": {"first_token_seconds": 10.0, "idle_seconds": 2.0},
    "prices": {
        "usd_per_megajoule": 5000.0,
        "endpoints": {
            "cloud": {"input_usd_per_mtok": 0.1, "output_usd_per_mtok": 0.4},
            "phone": {"prefill_joules_per_token": 0.1, "decode_joules_per_token": 0.1},
        },
    },
}


def quick() -> SimulatedEngine:
    """It writes the same, at once."""
    return SimulatedEngine(ENGINE.model_copy(update={"prefill_rate": 1e9, "decode_rate": 1e9, "overhead": 0.0}))


class MortalEndpoint:
    """A replica in this process. ``die``: every call breaks off, and for ``rest`` seconds nobody is there."""

    def __init__(self, name: str, kind: EndpointKind) -> None:
        self._settings = EndpointSettings(kind=kind, engine=ENGINE, slots=64)
        self.info = expected_info(name, self._settings)
        self._rise()

    def _rise(self) -> None:
        self.replica = EndpointReplica(self.info.id, self._settings)
        self._death: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def describe(self) -> None:
        engine = await self.replica.describe()
        assert not isinstance(engine, Refusal)
        self.info = described(self.info, engine)

    def die(self, rest: float) -> None:
        self._death.set_result(None)
        asyncio.get_running_loop().call_later(rest, self._rise)

    @property
    def is_dead(self) -> bool:
        return self._death.done()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[StreamItem, None]:
        death, batches = self._death, self.replica.generate(request)
        index = request.handoff.next_index if request.handoff else 0
        try:
            while True:
                batch = asyncio.ensure_future(anext(batches, None))
                try:
                    await asyncio.wait({batch, death}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    if not batch.done():
                        batch.cancel()
                        await asyncio.wait({batch})
                if death.done():
                    raise EndpointUnavailable("died", self.info.id)
                items = batch.result()
                if items is None:
                    return
                if isinstance(items, Refusal):
                    raise items.error
                for item in items or [TokenChunk(index, "", count=0)]:
                    if isinstance(item, TokenChunk):
                        index = item.index + item.count
                    yield item
        finally:
            await batches.aclose()


async def soak(streams: int, at_once: int, period: float, leaving: float) -> tuple[Stack, list[Seen]]:
    """Every ``period`` seconds one endpoint dies, for two seconds, unless the other is dead."""
    pair = MortalEndpoint("cloud", EndpointKind.CLOUD), MortalEndpoint("phone", EndpointKind.DEVICE)
    for one in pair:
        await one.describe()
    stack = Stack(*pair, live=LIVE)  # type: ignore[arg-type]
    gate, judge, dice = asyncio.Semaphore(at_once), Judge(quick()), random.Random(3)

    async def kill() -> None:
        while True:
            await asyncio.sleep(period)
            if not any(one.is_dead for one in pair):
                dice.choice(pair).die(2.0)

    async def one(errand: Errand) -> Seen:
        async with gate:
            leave_at = None
            if errand.leaves_after is not None:
                leave_at = asyncio.get_running_loop().time() + 0.1 * errand.leaves_after
            seen = seen_of(errand, await stack.ask(leave_at=leave_at, read=(errand.pause, 0.0), **errand.body))
        await judge.judge(seen)
        return seen

    killing = asyncio.create_task(kill())
    try:
        return stack, await asyncio.gather(*map(one, errands(streams, leaving, seed=0)))
    finally:
        killing.cancel()
        with suppress(asyncio.CancelledError):
            await killing


def seen_of(errand: Errand, answer: Answer) -> Seen:
    seen = Seen(errand)
    for chunk in answer.chunks if answer.status == 200 else ():
        seen.take(chunk)
    ids = [int(line[4:]) for line in answer.body.decode().split("\n") if line.startswith("id: ")]
    seen.arrivals = [(0.0, shown) for shown in ids]
    if answer.status not in (0, 200):
        seen.error = answer.error
    if answer.data[-1:] == ["[DONE]"]:
        seen.end = "complete"
    elif seen.error is not None:
        seen.end = "error"
    elif errand.leaves_after is not None:
        seen.end = "left"
    return seen


def test_a_soak_of_deaths_and_departures_leaves_every_text_and_account_right() -> None:
    async def main() -> None:
        stack, everyone = await soak(streams=200, at_once=15, period=3.0, leaving=0.1)
        counted = tally(everyone)
        assert counted["problems"] == {}
        assert counted["ends"]["complete"] > 150
        assert counted["legs"]["rescue completed"] > 0, "somebody was rescued"
        assert stack.running == 0
        await asyncio.sleep(60.0)
        assert (await stack.stream()).status == 200
        assert {stack.state.breakers[name].state for name in stack.endpoints} <= {
            BreakerState.CLOSED,
            BreakerState.OPEN,
        }, "no probe was forgotten"

    run_virtual(main())
