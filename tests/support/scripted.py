"""An endpoint that plays a script in its event loop's time, and keeps book of what it did."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from actors.pacing import clock_for
from serve_app.core.errors import EndpointFault
from serve_app.core.model import (
    ContinuesBy,
    EndpointInfo,
    FinishReason,
    GenerationRequest,
    Receipt,
    StreamItem,
    TokenChunk,
)
from tests.support.session_stage import id_of


class Hang:
    """The endpoint never says anything again."""


@dataclass(frozen=True, slots=True)
class EndWithoutFinish:
    """The stream just ends."""


@dataclass(frozen=True, slots=True)
class Raw:
    """Whatever ``item`` is, it is yielded as it is."""

    item: object


Step: TypeAlias = "tuple[float, str | BaseException | type[Hang] | EndWithoutFinish | Raw]"


@dataclass
class Call:
    """``generated`` and ``sent`` count tokens; times are the loop's seconds."""

    request: GenerationRequest
    started: float
    generated: int = 0
    sent: int = 0
    cancelled_at: float | None = None
    closed_at: float | None = None


@dataclass
class ScriptedEndpoint:
    """``script``: (seconds to wait, what comes then). A handoff skips the tokens it holds and keeps the first wait.

    Keeps to its Pace. ``closing``: seconds it takes to stop. The text ends with STOP where the script ends.
    """

    info: EndpointInfo
    script: Sequence[Step]
    closing: float = 0.0
    prompt_tokens: int = 10
    calls: list[Call] = field(default_factory=list)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[StreamItem, None]:
        loop = asyncio.get_running_loop()
        call = Call(request, loop.time())
        self.calls.append(call)
        finished = False
        try:
            yield Receipt(self.prompt_tokens)
            async for item in self._play(call):
                finished = item.finish is not None
                yield item
                call.sent += item.count
        except (asyncio.CancelledError, GeneratorExit):
            if not finished:
                call.cancelled_at = loop.time()
            raise
        finally:
            try:
                await asyncio.sleep(self.closing)
            finally:
                call.closed_at = loop.time()

    async def _play(self, call: Call) -> AsyncGenerator[TokenChunk, None]:
        request = call.request
        index = start = request.handoff.next_index if request.handoff else 0
        if request.handoff is not None and self.info.continues_by is ContinuesBy.NO:
            raise EndpointFault("cannot continue", self.info.id)
        steps = [(self.script[0][0], self.script[start][1]), *self.script[start + 1 :]] if self.script[start:] else []
        for delay, step in steps:
            await asyncio.sleep(delay)
            match step:
                case str():
                    call.generated += 1
                    finish = FinishReason.LENGTH if call.generated == request.sampling.max_tokens else None
                    yield TokenChunk(index, step, (id_of(step),), 1, finish=finish)
                    index += 1
                    async for sign in self._rest(call, index):
                        yield sign
                case EndWithoutFinish():
                    return
                case Raw(item):
                    yield item  # type: ignore[misc]
                case BaseException():
                    raise step
                case _:
                    await asyncio.Event().wait()
        yield TokenChunk(index, "", count=0, finish=FinishReason.STOP)

    async def _rest(self, call: Call, index: int) -> AsyncGenerator[TokenChunk, None]:
        """Wait for the reader where the pace demands it, with a sign of life once per slack."""
        loop, pace = asyncio.get_running_loop(), call.request.pace
        clock = clock_for(pace, call.started, call.started)
        assert clock is not None
        while clock.allowance(call.generated, loop.time()) == 0:
            opens = clock.opens_at(call.generated)
            if opens is None:
                yield TokenChunk(index, "", count=0, finish=FinishReason.PAUSED)
                return
            await asyncio.sleep(min(pace.slack, max(0.0, opens - loop.time())))
            yield TokenChunk(index, "", count=0)

    @property
    def generated(self) -> int:
        return sum(call.generated for call in self.calls)

    @property
    def cancelled_at(self) -> float | None:
        """When the last call was cancelled."""
        return self.calls[-1].cancelled_at


def words(text: str, first: float, gap: float) -> list[Step]:
    """Each character a token: the first after ``first`` seconds, the others ``gap`` apart."""
    return [(gap if rank else first, character) for rank, character in enumerate(text)]
