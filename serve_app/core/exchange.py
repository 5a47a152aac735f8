"""How several routers learn from each other: each brings its news and takes the others'."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from serve_app.core.estimates import Observation
from serve_app.core.model import EndpointId

#: Seconds after which a router that has not been heard of is gone, and its legs with it.
GONE_AFTER: Final = 10.0


class News(NamedTuple):
    """``cursor``: what to say next time. ``running``: legs of all other routers on each endpoint."""

    cursor: int
    observations: list[Observation]
    running: dict[EndpointId, int]


class Exchange:
    """The last ``keep`` observations of all routers, and how many legs each of them runs.

    It may be lost at any time: a router that shows a cursor from before starts over with what there is.
    """

    def __init__(self, keep: int = 20_000) -> None:
        self._log: deque[tuple[str, Observation]] = deque(maxlen=keep)
        self._end = 0
        self._running: dict[str, tuple[float, dict[EndpointId, int]]] = {}

    def trade(
        self, router: str, cursor: int, own: Sequence[Observation], running: Mapping[EndpointId, int], now: float
    ) -> News:
        """``cursor``: 0 the first time; the last ``News.cursor`` afterwards. ``now``: seconds."""
        oldest = self._end - len(self._log)
        skip = max(0, cursor - oldest) if cursor <= self._end else 0
        news = [seen for who, seen in islice(self._log, skip, None) if who != router]
        self._log.extend((router, seen) for seen in own)
        self._end += len(own)
        self._running[router] = now, dict(running)
        return News(self._end, news, self._others(router, now))

    def _others(self, router: str, now: float) -> dict[EndpointId, int]:
        self._running = {who: said for who, said in self._running.items() if now - said[0] < GONE_AFTER}
        total: dict[EndpointId, int] = {}
        for who, (_, running) in self._running.items():
            if who != router:
                for endpoint, legs in running.items():
                    total[endpoint] = total.get(endpoint, 0) + legs
        return total
