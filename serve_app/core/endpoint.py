"""The one seam between the router and whatever generates text."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from serve_app.core.model import EndpointInfo, GenerationRequest, StreamItem


class Endpoint(Protocol):
    """A place that can stream. A test double is one async generator."""

    @property
    def info(self) -> EndpointInfo: ...

    def generate(self, request: GenerationRequest) -> AsyncGenerator[StreamItem, None]:
        """Yield a Receipt, then chunks from ``handoff.next_index`` on, the last one with ``finish``.

        Closing the iterator aborts the generation. Raises ``EndpointError``, ``PromptTooLong`` or ``Overloaded``.
        """
        ...
