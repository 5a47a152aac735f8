"""What a replica needs of an engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from serve_app.core.model import ContinuesBy, GenerationRequest, StreamItem


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Facts known once the engine has loaded. ``imitates`` names the latency profile a shaped engine reproduces."""

    model: str
    context_length: int
    vocabulary: str | None
    continues_by: ContinuesBy = ContinuesBy.IDS
    counts_tokens: bool = True
    can_park: bool = False
    imitates: str | None = None


class Engine(Protocol):
    """Loads once, then streams. ``generate`` has the contract of ``serve_app.core.endpoint.Endpoint.generate``."""

    @property
    def info(self) -> EngineInfo:
        """Valid after ``start``."""
        ...

    async def start(self) -> None:
        """Load the model. Raises ``EndpointUnavailable`` with the remedy in its message."""
        ...

    def generate(self, request: GenerationRequest) -> AsyncGenerator[StreamItem, None]: ...

    async def close(self) -> None: ...


@runtime_checkable
class TellsProgress(Protocol):
    """An engine whose ``start`` takes so long that somebody will ask."""

    @property
    def progress(self) -> str:
        """What ``start`` is at, and for how long."""
        ...
