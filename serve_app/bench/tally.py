"""What a run showed, in bounded memory: counts, sums, and samples large enough for every percentile that is shown."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from serve_app.bench.outcome import OK, TIMEOUT, Outcome
from serve_app.core.stats import percentile

#: Values that are kept of each figure; of more, a random choice of as many.
KEPT: Final = 100_000

SHARES: Final = (0.01, 0.1, 0.5, 0.9, 0.95, 0.99)


class Sample:
    """A random choice among all values, each as likely as any other (Vitter's algorithm R)."""

    def __init__(self, seed: str, kept: int = KEPT) -> None:
        self._dice = random.Random(seed)
        self._kept = kept
        self.count = 0
        self.total = 0.0
        self.least = self.most = 0.0
        self.values: list[float] = []

    def add(self, value: float) -> None:
        self.least = min(self.least, value) if self.count else value
        self.most = max(self.most, value) if self.count else value
        self.count += 1
        self.total += value
        if len(self.values) < self._kept:
            self.values.append(value)
        elif (rank := self._dice.randrange(self.count)) < self._kept:
            self.values[rank] = value

    def extend(self, values: Iterable[float]) -> None:
        for value in values:
            self.add(value)

    def at(self, share: float) -> float | None:
        return percentile(self.values, share) if self.values else None

    def summary(self) -> dict[str, Any] | None:
        """Mean, extremes and percentiles; None without a value. ``kept``: on how many the percentiles rest."""
        if not self.count:
            return None
        ordered = sorted(self.values)
        shares = {f"p{share * 100:g}": percentile(ordered, share) for share in SHARES}
        return {
            "count": self.count,
            "kept": len(ordered),
            "mean": self.total / self.count,
            "min": self.least,
            **shares,
            "max": self.most,
        }


@dataclass
class Tally:
    """Of one server. ``name``: what its column is called.

    Of failed requests, their first tokens count too; one that timed out without any counts with the time it waited,
    which is the least that it would have taken.
    """

    name: str
    model: str
    planned: int
    seed: int = 0
    sent: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    messages: dict[str, str] = field(default_factory=dict)
    tokens: int = 0
    cost: float = 0.0
    priced: int = 0
    notional: bool = False
    moves: int = 0
    winners: Counter[str] = field(default_factory=Counter)
    elapsed: float = 0.0
    late: Sample = field(init=False)
    ttft: Sample = field(init=False)
    tbt: Sample = field(init=False)
    duration: Sample = field(init=False)
    qoe: Sample = field(init=False)

    def __post_init__(self) -> None:
        for name in ("late", "ttft", "tbt", "duration", "qoe"):
            setattr(self, name, Sample(f"{self.seed} {name}"))

    @property
    def done(self) -> int:
        return self.codes.total()

    @property
    def failed(self) -> int:
        return self.done - self.codes[OK]

    def take(self, outcome: Outcome, elapsed: float) -> None:
        """``elapsed``: seconds since the run's beginning."""
        self.elapsed = max(self.elapsed, elapsed)
        self.codes[outcome.code] += 1
        self.late.add(outcome.late)
        self.tokens += outcome.tokens
        if outcome.cost is not None:
            self.cost += outcome.cost
            self.priced += 1
            self.notional = self.notional or outcome.notional
        if outcome.ttft is not None:
            self.ttft.add(outcome.ttft)
        elif outcome.code == TIMEOUT:
            self.ttft.add(outcome.duration)
        if outcome.code != OK:
            self.messages.setdefault(outcome.code, outcome.message)
            return
        self.moves += outcome.moves
        if outcome.winner is not None:
            self.winners[outcome.winner] += 1
        if outcome.qoe is not None:
            self.qoe.add(outcome.qoe)
        self.tbt.extend(outcome.tbts)
        self.duration.add(outcome.duration)

    def summary(self) -> dict[str, Any]:
        """JSON-ready. Seconds, tokens, USD."""
        return {
            "server": self.name,
            "model": self.model,
            "planned": self.planned,
            "sent": self.sent,
            "codes": dict(self.codes),
            "messages": self.messages,
            "elapsed_s": self.elapsed,
            "ttft_s": self.ttft.summary(),
            "tbt_s": self.tbt.summary(),
            "duration_s": self.duration.summary(),
            "qoe": self.qoe.summary(),
            "late_s": self.late.summary(),
            "tokens": self.tokens,
            "tokens_per_second": self.tokens / self.elapsed if self.elapsed else None,
            "cost_usd": self.cost if self.priced else None,
            "cost_notional": self.notional,
            "priced_requests": self.priced,
            "moves": self.moves,
            "winners": dict(self.winners),
        }
