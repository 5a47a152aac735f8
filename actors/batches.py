"""A replica's batches as the single items that the core reads."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TypeVar

from actors.refusal import Refusal
from serve_app.core.errors import EndpointFault
from serve_app.core.model import EndpointId, GenerationRequest, StreamItem, TokenChunk

B = TypeVar("B", list[StreamItem], list[StreamItem] | Refusal)


async def single_items(
    batches: AsyncGenerator[B, None], request: GenerationRequest, endpoint: EndpointId
) -> AsyncGenerator[StreamItem, None]:
    """An empty batch becomes an empty chunk. Closes ``batches`` when it is closed itself.

    Raises what was refused, and EndpointFault for an end without a finish.
    """
    index = request.handoff.next_index if request.handoff else 0
    open_tokens = 0
    finished = False
    try:
        async for batch in batches:
            if isinstance(batch, Refusal):
                raise batch.error
            for item in batch or [TokenChunk(index=index, text="", count=0, open_tokens=open_tokens)]:
                if isinstance(item, TokenChunk):
                    index, open_tokens = item.index + item.count, item.open_tokens
                    finished = item.finish is not None
                yield item
        if not finished:
            raise EndpointFault("the stream ended without a reason", endpoint)
    finally:
        await batches.aclose()
