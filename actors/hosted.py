"""HostedEndpoint: the ``Endpoint`` of the core over a replica in this very process, without a deployment."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from actors.batches import single_items
from actors.handles import described
from actors.refusal import Refusal
from actors.replica import EndpointReplica
from serve_app.core.model import EndpointInfo, GenerationRequest, StreamItem


class HostedEndpoint:
    """For engines that only talk to a server: slots, pace and contract are the replica's as everywhere."""

    def __init__(self, info: EndpointInfo, replica: EndpointReplica) -> None:
        self.info = info
        self.replica = replica

    async def describe(self) -> EndpointInfo:
        """Ask the engine what it is and remember it in ``info``. Raises ``EndpointUnavailable`` with the reason."""
        answer = await self.replica.describe()
        if isinstance(answer, Refusal):
            raise answer.error
        self.info = described(self.info, answer)
        return self.info

    def generate(self, request: GenerationRequest) -> AsyncGenerator[StreamItem, None]:
        return single_items(self.replica.generate(request), request, self.info.id)

    async def close(self) -> None:
        """Streams that still run fail, and go on elsewhere where they may."""
        await self.replica.close()
