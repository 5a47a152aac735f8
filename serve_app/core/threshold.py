"""DiSCo-S: from which prompt length on the server takes part (paper section 5)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from serve_app.core.lengths import LengthDistribution


@dataclass(frozen=True, slots=True)
class LengthThreshold:
    """``threshold``: l_th in tokens, infinite when no length fits whole. From ``boundary`` up to l_th the server takes
    part with probability ``share`` (rho)."""

    threshold: float
    boundary: int
    share: float

    def uses_server(self, prompt_tokens: int, u: float) -> bool:
        """``u``: uniform in [0, 1)."""
        return prompt_tokens >= self.threshold or (prompt_tokens >= self.boundary and u < self.share)


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
