"""An asyncio event loop whose clock jumps to the next timer when nothing is ready: hours of waiting in milliseconds."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_THREAD_GRACE = 2.0
_SETTLING_TURNS = 20


class DeadlockError(RuntimeError):
    """Every task waits and no timer is set: nothing can ever happen again."""


class _JumpingSelector(selectors.DefaultSelector):
    """Polls the real descriptors, and instead of sleeping tells the clock how far to jump."""

    def __init__(self, jump: Callable[[float], None]) -> None:
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            # Only another thread can wake the loop now: give it real time, then call it a deadlock.
            ready = super().select(_THREAD_GRACE)
            if not ready:
                raise DeadlockError("every task waits and no timer is set")
            return ready
        ready = super().select(0)
        if not ready and timeout > 0:
            self._jump(timeout)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Starts at time 0. Work in threads is not virtual: the clock may jump while a thread runs."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_JumpingSelector(self._advance))
        # Timers further apart than this fire one after the other; real loops take a nanosecond for the same instant.
        self._clock_resolution = 1e-10

    def time(self) -> float:
        return self._now

    def _advance(self, seconds: float) -> None:
        self._now += seconds


def run_virtual(coro: Coroutine[Any, Any, T]) -> T:
    """Run ``coro`` in virtual time; fail on tasks it left behind and on exceptions nobody retrieved."""
    unhandled: list[dict[str, Any]] = []

    async def supervised() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        result = await coro
        for _ in range(_SETTLING_TURNS):
            await asyncio.sleep(0)
        left = sorted(task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task())
        if left:
            raise RuntimeError(f"tasks left behind: {', '.join(left)}")
        return result

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        result = runner.run(supervised())
    if unhandled:
        raise RuntimeError(f"unhandled: {[context['message'] for context in unhandled]}")
    return result
