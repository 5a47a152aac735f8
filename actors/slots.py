"""Admission to a replica: a fixed number of slots, a bounded first-come queue, and an honest refusal."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from serve_app.core.errors import Overloaded

_SMOOTHING = 0.2
_SHORTEST_RETRY = 1.0
_LONGEST_RETRY = 60.0


class Slots:
    """Ray's own queue limits refuse too many of the requests that arrive together, so the replica counts for itself."""

    def __init__(self, slots: int, queue: int) -> None:
        self._free = slots
        self._slots = slots
        self._queue = queue
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._holding = _SHORTEST_RETRY

    @property
    def free(self) -> int:
        return self._free

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def acquire(self) -> None:
        """Wait for a slot. Raises ``Overloaded`` when the queue is full; a cancelled waiter leaves no trace."""
        if self._free and not self._waiting:
            self._free -= 1
            return
        if len(self._waiting) >= self._queue:
            raise Overloaded("every slot is busy and the queue is full", self.retry_after())
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with contextlib.suppress(ValueError):
                    self._waiting.remove(turn)
            else:
                # The slot was granted in the same instant in which the caller left: hand it on.
                self._free_one()
            raise

    def release(self, held: float) -> None:
        """Return a slot that was held for ``held`` seconds."""
        self._holding += _SMOOTHING * (held - self._holding)
        self._free_one()

    def retry_after(self) -> float:
        """Seconds until a newcomer could expect a slot, from how long slots were held lately."""
        expected = self._holding * (len(self._waiting) + 1) / self._slots
        return min(_LONGEST_RETRY, max(_SHORTEST_RETRY, expected))

    def _free_one(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
