"""DiSCo-S: from which prompt length on the server takes part (paper section 5)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serve_app.core.lengths import LengthDistribution
from serve_app.core.schedule import NEVER, Delays, Start


@dataclass(frozen=True, slots=True)
class LengthThreshold:
    """The device always starts at once. ``threshold``: l_th in tokens, infinite when no length fits whole; from there
    on the server starts as well. From ``boundary`` up to l_th it does with probability ``share`` (rho)."""

    threshold: float
    boundary: int
    share: float

    def delays(self, prompt_tokens: NDArray[np.int64], u: NDArray[np.float64]) -> Delays:
        chance = (prompt_tokens >= self.boundary) & (u < self.share)
        server = np.where((prompt_tokens >= self.threshold) | chance, 0.0, NEVER)
        return Delays(server, np.zeros(server.size))

    def start(self, prompt_tokens: int, u: float) -> Start:
        used = prompt_tokens >= self.threshold or (prompt_tokens >= self.boundary and u < self.share)
        return Start(0.0 if used else NEVER, 0.0)


def fit_threshold(lengths: LengthDistribution, budget: float) -> LengthThreshold:
    """Longest first, while p(l) l fits into b E[l]; the next length with the probability that spends the rest."""
    weights = (lengths.lengths * lengths.probabilities)[::-1]
    spent = np.cumsum(weights)
    left = budget * lengths.mean
    whole = int(np.searchsorted(spent, left * (1 + 1e-12), side="right"))
    descending = lengths.lengths[::-1]
    threshold = float(descending[whole - 1]) if whole else math.inf
    if whole == weights.size:
        return LengthThreshold(threshold, int(threshold), 0.0)
    rest = left - (float(spent[whole - 1]) if whole else 0.0)
    return LengthThreshold(threshold, int(descending[whole]), max(0.0, rest / float(weights[whole])))
