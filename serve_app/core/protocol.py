"""What a session is told, and what it asks for. Every value names its attempt; events of a dead attempt change nothing
but that attempt's account."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from serve_app.core.errors import DiscoError
from serve_app.core.model import (
    AttemptId,
    ContinuesBy,
    EndpointId,
    EndpointInfo,
    FinishReason,
    Handoff,
    Pace,
    Receipt,
    TokenChunk,
)


class Phase(Enum):
    PREFILL = auto()
    DECODE = auto()
    HANDOFF = auto()
    PAUSED = auto()
    CLOSED = auto()


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """Limits of one stream. Times in seconds, amounts in tokens, ``rate`` (r_c) in tokens per second.

    ahead_tokens: most tokens generated beyond what was delivered. hold: endpoints may batch tokens not yet due.
    park_seconds: how long the loser of a race that is the planned target may keep its prefill.
    """

    max_tokens: int
    prompt_tokens: int
    stops: tuple[str, ...] = ()
    rate: float | None = 4.8
    ahead_tokens: int = 256
    slack: float = 0.5
    hold: bool = False
    max_planned: int = 1
    max_rescues: int = 2
    first_token_timeout: float = 30.0
    idle_timeout: float = 5.0
    stream_timeout: float = 600.0
    park_seconds: float = 30.0

    def pace(self, info: EndpointInfo, lead: int, backlog: int) -> Pace:
        """For a leg that starts now at ``info``. ``lead``: unread tokens; ``backlog``: undelivered ones."""
        if self.rate is not None:
            return Pace(self.rate, self.ahead_tokens // 2, self.slack, self.hold, float(lead))
        # A leg that cannot be resumed must not pause.
        resumable = info.continues_by is not ContinuesBy.NO
        return Pace(None, max(1, self.ahead_tokens - backlog) if resumable else self.max_tokens, self.slack)


@dataclass(frozen=True, slots=True)
class Opened:
    """The request was admitted; the plan's clock starts now."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """An endpoint gave the attempt a slot and counted its prompt."""

    attempt: AttemptId
    receipt: Receipt


@dataclass(frozen=True, slots=True)
class ChunkArrived:
    attempt: AttemptId
    chunk: TokenChunk


@dataclass(frozen=True, slots=True)
class StreamFailed:
    attempt: AttemptId
    error: DiscoError


@dataclass(frozen=True, slots=True)
class Delivered:
    """``tokens`` more tokens went to the client."""

    tokens: int


@dataclass(frozen=True, slots=True)
class ClientLeft:
    """Nobody listens any more."""


@dataclass(frozen=True, slots=True)
class Woke:
    """``wake_at`` has passed."""


Event: TypeAlias = Opened | Accepted | ChunkArrived | StreamFailed | Delivered | ClientLeft | Woke


@dataclass(frozen=True, slots=True)
class StartStream:
    """``max_tokens``: what the leg may still produce. ``park``: see GenerationRequest."""

    attempt: AttemptId
    endpoint: EndpointId
    max_tokens: int
    pace: Pace
    handoff: Handoff | None = None
    park: float = 0.0


@dataclass(frozen=True, slots=True)
class CancelStream:
    attempt: AttemptId


@dataclass(frozen=True, slots=True)
class Emit:
    """Show ``text``; with it tokens ``index`` .. ``index + count - 1`` are complete. ``endpoint`` wrote them."""

    index: int
    count: int
    text: str
    endpoint: EndpointId


@dataclass(frozen=True, slots=True)
class Close:
    """The last command. ``error`` is set where the stream could not be completed; the client may have left instead."""

    finish: FinishReason | None = None
    error: DiscoError | None = None


Command: TypeAlias = StartStream | CancelStream | Emit | Close
