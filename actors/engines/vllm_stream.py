"""One leg's tokens, never far ahead of who takes them: vLLM itself would go on whether anybody reads or not."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, TypeAlias

from serve_app.core.model import FinishReason

#: Tokens that may wait to be taken. A generation that was broken off costs at most one block of the prefix cache more.
AHEAD: Final = 64


@dataclass(frozen=True, slots=True)
class Step:
    """Consecutive ids, none of which ends the answer. ``cached``: tokens of the input that needed no prefill."""

    ids: tuple[int, ...]
    finish: FinishReason | None = None
    cached: int = 0


Generate: TypeAlias = Callable[[Sequence[int]], AsyncGenerator[Step, None]]


class TokenStream:
    """With ``ahead`` tokens waiting, the generation is broken off; with half of them left, it goes on from the last.

    ``generate`` takes the ids to evaluate: those given, and what it made of them before. ``ahead`` None: no limit.
    """

    def __init__(self, generate: Generate, ids: Sequence[int], ahead: int | None = AHEAD) -> None:
        self._generate = generate
        self._ids = list(ids)
        self._ahead = ahead
        self._steps: deque[Step] = deque()
        self._waiting = 0
        self._changed = asyncio.Event()
        self._filling: asyncio.Task[None] | None = None
        self._broken_off = False

    async def cached(self, timeout: float) -> int:
        """Tokens of the input that needed no prefill; 0 also where that is not known within ``timeout`` seconds."""
        filling = self._go_on()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not self._steps and not filling.done():
                    self._changed.clear()
                    await self._changed.wait()
        return self._steps[0].cached if self._steps else 0

    async def next(self) -> Step:
        """The next step; what ``generate`` raises comes after the steps before it."""
        filling = self._go_on()
        while not self._steps:
            self._changed.clear()
            if filling.done():
                filling.result()
                raise RuntimeError("the generation ended without a finish")
            await self._changed.wait()
        step = self._steps.popleft()
        self._waiting -= len(step.ids)
        return step

    async def aclose(self) -> None:
        """Returns when ``generate`` has been closed."""
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.wait({self._filling})

    def _go_on(self) -> asyncio.Task[None]:
        resumes = self._broken_off and self._ahead is not None and self._waiting <= self._ahead // 2
        if self._filling is None or resumes:
            self._broken_off = False
            self._filling = asyncio.create_task(self._fill(), name="vllm stream")
            self._filling.add_done_callback(lambda _: self._changed.set())
        return self._filling

    async def _fill(self) -> None:
        async with aclosing(self._generate(self._ids)) as steps:
            async for step in steps:
                self._ids += step.ids
                self._steps.append(step)
                self._waiting += len(step.ids)
                self._changed.set()
                if step.finish is not None:
                    return
                if self._ahead is not None and self._waiting >= self._ahead:
                    break
            else:
                return
        self._broken_off = True
