"""What became of one request, as its client saw it. All times count from when it was due, however late it was sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from serve_app.client.answers import Chunk
from serve_app.core.stats import gaps, qoe

OK: Final = "ok"
TIMEOUT: Final = "timeout"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Seconds and USD. ``late``: from when it was due until it was sent, the load generator's own doing.

    code: ``ok``, or what went wrong. tbts: between tokens, where the server numbers them, else between pieces of text.
    cost, notional, moves, winner: by the report, None without one.
    """

    number: int
    due: float
    late: float
    duration: float
    code: str
    message: str = ""
    ttft: float | None = None
    tbts: Sequence[float] = ()
    tokens: int = 0
    qoe: float | None = None
    cost: float | None = None
    notional: bool = False
    moves: int = 0
    winner: str | None = None


@dataclass(frozen=True, slots=True)
class Reader:
    """``rate``: tokens per second; ``expected``: seconds until the first one that the reader takes for good."""

    rate: float = 4.8
    expected: float = 1.0


@dataclass
class Reading:
    """An answer while it comes. ``arrivals``: a time per token, in the clock's seconds."""

    numbered: bool
    arrivals: list[float] = field(default_factory=list)
    first: float | None = None
    counted: int | None = None
    finish: str | None = None
    report: Mapping[str, Any] | None = None

    def take(self, chunk: Chunk) -> None:
        numbered = chunk.shown if self.numbered else None
        new = bool(chunk.text) if numbered is None else numbered - len(self.arrivals)
        self.arrivals += [chunk.at] * new
        if chunk.text and self.first is None:
            self.first = chunk.at
        self.counted = chunk.completion_tokens or self.counted
        self.finish = chunk.finish or self.finish
        self.report = chunk.report or self.report

    def outcome(
        self, number: int, due: float, sent: float, ended: float, reader: Reader, code: str = OK, message: str = ""
    ) -> Outcome:
        if code == OK and self.finish is None:
            code, message = "unfinished", "the answer ended without a finish reason"
        report = self.report or {}
        waited = [at - due for at in self.arrivals]
        return Outcome(
            number=number,
            due=due,
            late=sent - due,
            duration=ended - due,
            code=code,
            message=message,
            ttft=None if self.first is None else self.first - due,
            tbts=gaps(self.arrivals),
            tokens=len(self.arrivals) if self.numbered else self.counted or len(self.arrivals),
            qoe=qoe(waited, reader.rate, reader.expected) if waited and code == OK else None,
            cost=report.get("cost_usd"),
            notional=bool(report.get("cost_notional")),
            moves=sum(move.get("outcome") == "completed" for move in report.get("migrations", ())),
            winner=report.get("winner"),
        )
