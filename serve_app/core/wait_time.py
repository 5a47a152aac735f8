"""DiSCo-D: how long a request waits for the server before the device starts as well (paper section 4)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from serve_app.core.latency import ServerTtft
from serve_app.core.lengths import LengthDistribution
from serve_app.core.schedule import Delays, Start


@dataclass(frozen=True, slots=True)
class WaitTable:
    """w(l) in seconds by prompt length: the server starts at once, the device after w(l).

    lengths: of the fit, ascending. A length between two of them waits like the longer one, so that it does not spend
        more than a length that was seen; one beyond the last waits ``tail`` (w_tail).
    eager: waits of requests with u < ``share``, where one table alone cannot spend exactly the budget.
    """

    lengths: NDArray[np.int64]
    waits: NDArray[np.float64]
    tail: float
    eager: NDArray[np.float64] | None = None
    share: float = 0.0

    def delays(self, prompt_tokens: NDArray[np.int64], u: NDArray[np.float64]) -> Delays:
        row = np.searchsorted(self.lengths, prompt_tokens)
        waits = np.append(self.waits, self.tail)[row]
        if self.eager is not None:
            waits = np.where(u < self.share, np.append(self.eager, self.tail)[row], waits)
        return Delays(np.zeros(row.size), waits)

    def start(self, prompt_tokens: int, u: float) -> Start:
        row = int(self.lengths.searchsorted(prompt_tokens))
        if row == self.lengths.size:
            return Start(0.0, self.tail)
        waits = self.waits if self.eager is None or u >= self.share else self.eager
        return Start(0.0, waits.item(row))

    def at_most(self, longest: float) -> WaitTable:
        """The same, but nobody waits longer than ``longest`` seconds."""
        eager = None if self.eager is None else np.minimum(self.eager, longest)
        return replace(self, waits=np.minimum(self.waits, longest), tail=min(self.tail, longest), eager=eager)


def fit_waits(ttft: ServerTtft, lengths: LengthDistribution, budget: float, tail_share: float) -> WaitTable:
    """Spend the share ``tail_share`` (alpha) of the budget b on the slowest answers, the rest on the shortest prompts.

    The device runs iff T_s > w(l); the expected spend never exceeds b E[l].
    """
    tail = ttft.quantile(1 - min(tail_share, budget))
    waits = np.full(lengths.lengths.size, tail)
    left = (budget - tail_share) * lengths.mean
    if left > 0:
        weights = lengths.lengths * lengths.probabilities
        spent = np.cumsum(weights * (1 - tail_share))
        whole = int(np.searchsorted(spent, left * (1 + 1e-12), side="right"))
        waits[:whole] = 0.0
        if whole < waits.size:
            rest = left - (spent[whole - 1] if whole else 0.0)
            waits[whole] = min(tail, ttft.quantile(1 - tail_share - rest / float(weights[whole])))
    return WaitTable(lengths.lengths, waits, tail)
