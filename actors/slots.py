"""Admission to a replica: a fixed number of slots, a bounded first-come queue, and an honest refusal."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from serve_app.core.errors import Overloaded
from serve_app.core.turns import REMEMBERED, seconds_until_free


class Slots:
    """Ray's own queue limits refuse too many of the requests that arrive together, so the replica counts for itself."""

    def __init__(self, slots: int, queue: int) -> None:
        self._slots = slots
        self._queue = queue
        self._waiting: deque[asyncio.Future[float]] = deque()
        self._granted: list[float] = []
        self._held: deque[float] = deque(maxlen=REMEMBERED)

    @property
    def free(self) -> int:
        return self._slots - len(self._granted)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def acquire(self) -> float:
        """Wait for a slot; when it was granted, in the loop's seconds, which ``release`` takes.

        Raises ``Overloaded`` when the queue is full; a cancelled waiter leaves no trace.
        """
        if self.free and not self._waiting:
            return self._grant()
        if len(self._waiting) >= self._queue:
            raise Overloaded("every slot is busy and the queue is full", self.retry_after())
        turn: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with contextlib.suppress(ValueError):
                    self._waiting.remove(turn)
            else:
                # The slot was granted in the same instant in which the caller left: hand it on.
                self._free_one(turn.result())
            raise

    def release(self, granted: float) -> None:
        """Return the slot that was granted then."""
        self._held.append(asyncio.get_running_loop().time() - granted)
        self._free_one(granted)

    def retry_after(self) -> float:
        """Seconds until a newcomer could expect a slot."""
        now = asyncio.get_running_loop().time()
        return seconds_until_free([now - granted for granted in self._granted], self._held, len(self._waiting) + 1)

    def _grant(self) -> float:
        now = asyncio.get_running_loop().time()
        self._granted.append(now)
        return now

    def _free_one(self, granted: float) -> None:
        self._granted.remove(granted)
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(self._grant())
                return
