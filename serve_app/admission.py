"""How many streams run at once, and how they end when the router does."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import islice
from typing import Final

from serve_app.core.errors import Draining, Overloaded
from serve_app.core.turns import REMEMBERED, seconds_until_free

#: Streams, the oldest, that are asked when one will end: a refusal must stay cheap.
_ASKED: Final = 1000

_LAST_WORDS = "the service is shutting down; send the request again when it is back, or to another one"


class Admission:
    """Counts the streams of one router replica, and ends them when it shuts down."""

    def __init__(self, max_streams: int) -> None:
        self._max_streams = max_streams
        self._ends_at: float | None = None
        self._limits: set[asyncio.Timeout] = set()
        self._changed = asyncio.Event()
        self._began: dict[object, float] = {}
        self._held: deque[float] = deque(maxlen=REMEMBERED)

    @property
    def running(self) -> int:
        return len(self._began)

    @property
    def draining(self) -> bool:
        return self._ends_at is not None

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Held as long as the stream. Raises Draining, or Overloaded where none is free."""
        if self.draining:
            raise Draining(_LAST_WORDS)
        if self.running >= self._max_streams:
            raise Overloaded(f"{self._max_streams} streams are running here; try again shortly", self._retry_after())
        stream, clock = object(), asyncio.get_running_loop().time
        self._began[stream] = clock()
        try:
            yield
        finally:
            self._held.append(clock() - self._began.pop(stream))
            self._changed.set()

    def _retry_after(self) -> float:
        now = asyncio.get_running_loop().time()
        return seconds_until_free([now - began for began in islice(self._began.values(), _ASKED)], self._held)

    @asynccontextmanager
    async def until_drained(self) -> AsyncIterator[None]:
        """Raises Draining inside its block when the time that a shutdown leaves is over."""
        limit = asyncio.timeout_at(self._ends_at)
        try:
            async with limit:
                self._limits.add(limit)
                try:
                    yield
                finally:
                    self._limits.discard(limit)
        except TimeoutError:
            if limit.expired():
                raise Draining(_LAST_WORDS) from None
            raise

    async def drain(self, grace: float) -> None:
        """Admit nothing more; give the running streams ``grace`` seconds to end. Returns when none runs any more."""
        if not self.draining:
            self._ends_at = asyncio.get_running_loop().time() + grace
            for limit in self._limits:
                limit.reschedule(self._ends_at)
        while self.running:
            self._changed.clear()
            await self._changed.wait()
