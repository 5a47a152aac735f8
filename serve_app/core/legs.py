"""One attempt at one endpoint, and its account."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from serve_app.core.errors import DiscoError, EndpointError
from serve_app.core.model import AttemptId, EndpointInfo, Handoff, Receipt, TokenChunk
from serve_app.core.watch import ENDLESS, Patience


class LegReason(StrEnum):
    """Why the leg was started."""

    DISPATCH = "dispatch"
    HEDGE = "hedge"
    RETRY = "retry"
    MIGRATION = "migration"
    RESCUE = "rescue"
    RESUME = "resume"


class LegOutcome(StrEnum):
    """How the leg ended. HANDED_OVER: another leg carried on from its tokens. LOST: it lost the race."""

    RUNNING = "running"
    COMPLETED = "completed"
    HANDED_OVER = "handed_over"
    LOST = "lost"
    PARKED = "parked"
    PAUSED = "paused"
    ABANDONED = "abandoned"
    CANCELLED = "cancelled"
    EMPTY = "empty"
    FAILED = "failed"


#: Tokens that every pace lets through at once: half of the smallest ``ahead_tokens``.
UNHINDERED = 8


@dataclass(slots=True)
class Leg:
    """Times are seconds on the session's clock. ``tokens`` counts all the leg generated, used or not.

    ``decoded`` tokens came in the ``decode_seconds`` after the first one, before any pace could hold them up.
    ``silence``: the longest time from one item to the next, from the first token on. ``suspected_at``: when its silence
    outlasted ``patience``, which happens once.
    """

    attempt: AttemptId
    info: EndpointInfo
    reason: LegReason
    started: float
    handoff: Handoff | None = None
    outcome: LegOutcome = LegOutcome.RUNNING
    ended: float | None = None
    receipt: Receipt | None = None
    first_token: float | None = None
    last_item: float = 0.0
    tokens: int = 0
    decoded: int = 0
    decode_seconds: float = 0.0
    used: int = 0
    late: float = 0.0
    error: DiscoError | None = None
    watched: bool = False
    cut: bool = False
    silence: float = 0.0
    patience: Patience = ENDLESS
    suspected_at: float | None = None

    @property
    def live(self) -> bool:
        return self.ended is None

    @property
    def next_index(self) -> int:
        return self.handoff.next_index if self.handoff else 0

    @property
    def ttft(self) -> float | None:
        """Seconds from the leg's start to its first content token."""
        return None if self.first_token is None else self.first_token - self.started

    @property
    def overdue(self) -> bool:
        """It was suspected and has not been heard of since."""
        return self.suspected_at is not None and self.last_item < self.suspected_at

    def is_parked(self, now: float, seconds: float) -> bool:
        """It lost, and its endpoint still keeps the prefill, which it does for ``seconds``."""
        return self.outcome is LegOutcome.PARKED and self.ended is not None and now < self.ended + seconds

    def admit(self, receipt: Receipt, now: float) -> None:
        self.receipt = receipt
        self.last_item = now

    def record(self, chunk: TokenChunk, now: float) -> None:
        if self.first_token is not None:
            self.silence = max(self.silence, now - self.last_item)
        self.last_item = now
        self.tokens += chunk.count
        self.late = max(self.late, chunk.imitation_late)
        if chunk.count and self.first_token is None:
            self.first_token = now
        elif chunk.count and self.first_token is not None and self.tokens <= UNHINDERED:
            self.decoded += chunk.count
            self.decode_seconds = now - self.first_token

    def end(self, outcome: LegOutcome, now: float, *, cut: bool = False) -> None:
        """``cut``: it was told to stop, so it may have done more than it could report."""
        self.outcome = outcome
        self.ended = now
        self.cut = self.cut or cut


@dataclass(slots=True)
class MigrationRecord:
    """What became of one handoff. ``started``, ``ended``: seconds on the session's clock.

    gap: seconds between the last token before and the first one after it.
    """

    source: str
    target: str
    at_token: int
    reason: LegReason
    mode: str
    started: float
    outcome: str = "pending"
    accepted_after: float | None = None
    gap: float | None = None
    ended: float | None = None

    def end(self, outcome: str, now: float) -> None:
        self.outcome = outcome
        self.ended = now


def first_cause(first: DiscoError | None, legs: Sequence[Leg]) -> DiscoError | None:
    """``first``, with the names and codes of what failed besides."""
    others = [f"{leg.info.id} ({leg.error.code})" for leg in legs if leg.error is not None and leg.error is not first]
    if not isinstance(first, EndpointError) or not others:
        return first
    return type(first)(f"{first.message}; then failed: {', '.join(others)}", first.endpoint)
