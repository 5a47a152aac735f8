"""DiSCo-D: how long a request waits for the server before the device starts as well (paper section 4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serve_app.core.latency import EmpiricalTtft
from serve_app.core.lengths import LengthDistribution


@dataclass(frozen=True, slots=True)
class WaitTable:
    """w(l) in seconds for the lengths of the fit, ascending in l, and ``tail`` (w_tail) for longer ones."""

    lengths: NDArray[np.int64]
    waits: NDArray[np.float64]
    tail: float

    def wait(self, prompt_tokens: int) -> float:
        """w of the next longer fitted length, so that a length never seen does not spend more than a seen one."""
        position = int(np.searchsorted(self.lengths, prompt_tokens))
        return float(self.waits[position]) if position < self.lengths.size else self.tail


def fit_waits(ttft: EmpiricalTtft, lengths: LengthDistribution, budget: float, tail_share: float) -> WaitTable:
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
