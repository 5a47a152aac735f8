"""An engine that follows a script and counts what was asked of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from actors.engines.base import EngineInfo
from actors.refusal import Refusal
from actors.replica import EndpointReplica
from serve_app.core.model import (
    AttemptId,
    EndpointKind,
    FinishReason,
    GenerationRequest,
    Handoff,
    Pace,
    Receipt,
    Sampling,
    StreamItem,
    TextPrompt,
    TokenChunk,
)
from serve_app.engine_settings import SimulatedEngineSettings
from serve_app.settings import EndpointSettings

EAGER = Pace(rate=None, ahead_limit=10_000)


class Hang:
    """A step that never ends."""


Step = StreamItem | Exception | Hang | float
"""An item to yield, an exception to raise, a hang, or seconds to wait."""


@dataclass
class ScriptedEngine:
    script: Sequence[Step]
    start_error: Exception | None = None
    loading: float = 0.0
    closing: float = 0.0
    started: list[AttemptId] = field(default_factory=list)
    produced: list[float] = field(default_factory=list)
    closed: list[float] = field(default_factory=list)

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(model="scripted", context_length=4096, vocabulary="scripted")

    async def start(self) -> None:
        await asyncio.sleep(self.loading)
        if self.start_error is not None:
            raise self.start_error

    async def close(self) -> None:
        pass

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[StreamItem, None]:
        loop = asyncio.get_running_loop()
        self.started.append(request.attempt_id)
        try:
            for step in self.script:
                match step:
                    case float():
                        await asyncio.sleep(step)
                    case Hang():
                        await asyncio.Event().wait()
                    case Exception():
                        raise step
                    case _:
                        self.produced.append(loop.time())
                        yield step
        finally:
            if self.closing:
                await asyncio.sleep(self.closing)
            self.closed.append(loop.time())


def tokens(count: int, every: float, first: int = 0, finish: FinishReason | None = FinishReason.STOP) -> list[Step]:
    """``count`` one-token chunks, one per ``every`` seconds."""
    steps: list[Step] = []
    for number in range(first, first + count):
        last = number == first + count - 1
        steps += [every, TokenChunk(number, f"t{number} ", (number,), finish=finish if last else None)]
    return steps


RECEIPT = Receipt(prompt_tokens=7)


def replica_of(engine: ScriptedEngine, slots: int = 1, queue: int = 16) -> EndpointReplica:
    settings = EndpointSettings(kind=EndpointKind.DEVICE, engine=SimulatedEngineSettings(), slots=slots, queue=queue)
    return EndpointReplica("phone", settings, make=lambda *_: engine)


def request(attempt: AttemptId = "a1", pace: Pace = EAGER, handoff: Handoff | None = None) -> GenerationRequest:
    return GenerationRequest(attempt, TextPrompt("hello"), Sampling(max_tokens=100_000), handoff=handoff, pace=pace)


async def drain(replica: EndpointReplica, asked: GenerationRequest) -> list[tuple[float, list[StreamItem]]]:
    """Every batch with the time at which it left. Raises a refusal as ``ServeEndpoint`` does."""
    loop = asyncio.get_running_loop()
    batches = []
    async for batch in replica.generate(asked):
        if isinstance(batch, Refusal):
            raise batch.error
        batches.append((loop.time(), batch))
    return batches


def chunks(batches: Sequence[tuple[float, list[StreamItem]]]) -> list[TokenChunk]:
    return [item for _, batch in batches for item in batch if isinstance(item, TokenChunk)]
