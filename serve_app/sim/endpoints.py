"""Endpoints of a replayed request: they answer when the trace says so, on whatever clock the event loop has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Protocol

from actors.pacing import ReaderClock, clock_for
from serve_app.core.latency import LinearTtft
from serve_app.core.model import (
    EndpointInfo,
    FinishReason,
    GenerationRequest,
    Receipt,
    StreamItem,
    TokenChunk,
    TokenPrompt,
)


class Timing(Protocol):
    """When an endpoint's first token comes."""

    def ttft(self, number: int, prompt_tokens: int, request: GenerationRequest) -> float:
        """Seconds for request ``number`` of the trace, from now on."""
        ...

    def lost(self, number: int, request: GenerationRequest) -> None:
        """The call was cancelled before its first token."""
        ...


@dataclass
class ServerTiming:
    """T_s of the first call as drawn; of a handoff's, as drawn for that, plus ``network`` seconds."""

    first: list[float]
    handoffs: list[float]
    network: float

    def ttft(self, number: int, prompt_tokens: int, request: GenerationRequest) -> float:  # noqa: ARG002
        return self.first[number] if request.handoff is None else self.network + self.handoffs[number]

    def lost(self, number: int, request: GenerationRequest) -> None:
        """A server keeps nothing."""


@dataclass
class DeviceTiming:
    """T_d(l) = k l + c. A cancelled first call may keep its prefill: then a handoff waits for what is missing of it."""

    line: LinearTtft
    network: float
    _begun: dict[int, float] = field(default_factory=dict)
    _parked: set[int] = field(default_factory=set)

    def ttft(self, number: int, prompt_tokens: int, request: GenerationRequest) -> float:
        now = asyncio.get_running_loop().time()
        if request.handoff is None:
            self._begun[number] = now
            return self.line.predict(prompt_tokens)
        written = request.handoff.next_index
        whole = self.line.predict(prompt_tokens + written)
        if number not in self._parked:
            return self.network + whole
        missing = self.network + whole - (now - self._begun[number])
        return max(self.network + self.line.predict(written), missing + self.line.intercept)

    def lost(self, number: int, request: GenerationRequest) -> None:
        if request.park > 0:
            self._parked.add(number)


@dataclass
class TimedEndpoint:
    """Answers request k of the trace, whose prompt's first token is k, with ``outputs[k]`` tokens; keeps to its pace.

    started: (request, seconds) of each call that is no handoff.
    """

    info: EndpointInfo
    timing: Timing
    decode_rate: float
    outputs: list[int]
    started: list[tuple[int, float]] = field(default_factory=list)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[StreamItem, None]:
        loop = asyncio.get_running_loop()
        assert isinstance(request.prompt, TokenPrompt)
        number, prompt_tokens = request.prompt.token_ids[0], len(request.prompt.token_ids)
        start = loop.time()
        if request.handoff is None:
            self.started.append((number, start))
        answer = start + self.timing.ttft(number, prompt_tokens, request)
        yield Receipt(prompt_tokens)
        try:
            await asyncio.sleep(answer - start)
        except asyncio.CancelledError:
            self.timing.lost(number, request)
            raise
        async for chunk in self._decode(request, number, start, answer):
            yield chunk

    async def _decode(
        self, request: GenerationRequest, number: int, start: float, answer: float
    ) -> AsyncGenerator[TokenChunk, None]:
        loop = asyncio.get_running_loop()
        first = request.handoff.next_index if request.handoff else 0
        last = min(self.outputs[number], first + request.sampling.max_tokens) - 1
        clock = clock_for(request.pace, start, answer)
        assert clock is not None
        due = answer
        for index in range(first, last + 1):
            while (wait := max(due, _opens(clock, index - first)) - loop.time()) > 0:
                nap = min(wait, request.pace.slack)
                await asyncio.sleep(nap)
                if nap < wait:
                    yield TokenChunk(index, "", count=0)
            due = loop.time() + 1 / self.decode_rate
            yield TokenChunk(index, "w ", (index,), 1, finish=FinishReason.STOP if index == last else None)


def _opens(clock: ReaderClock, produced: int) -> float:
    """When the pace lets the next token through. A reader of unknown speed is not replayed."""
    opens = clock.opens_at(produced)
    assert opens is not None
    return opens
