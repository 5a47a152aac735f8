"""ExchangeReplica: the one place at which several router replicas meet. Nothing waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from serve_app.core.estimates import Observation
from serve_app.core.exchange import Exchange, News
from serve_app.core.model import EndpointId
from serve_app.fleet import FleetLog, FleetNews


class ExchangeReplica:
    """Serve restarts it when it dies; the routers bring it up to date again by what they observe from then on."""

    def __init__(self) -> None:
        self._exchange = Exchange()
        self._fleet = FleetLog("exchange")

    async def compare(self, news: FleetNews) -> FleetNews:
        """What any router knows of the devices that have joined."""
        now = asyncio.get_running_loop().time()
        self._fleet.merge(news, now)
        return self._fleet.tell(now)

    async def trade(
        self, router: str, cursor: int, own: Sequence[Observation], running: Mapping[EndpointId, int]
    ) -> News:
        return self._exchange.trade(router, cursor, own, running, asyncio.get_running_loop().time())
