"""Lengths of prompts and answers, in tokens."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from serve_app.core.cuts import even_cuts

#: Samples up to this length are counted in a table with a cell per length, which is faster than sorting them.
LONGEST_COUNTED: Final = 1 << 16


class Strata(NamedTuple):
    """Neighbouring lengths taken together, ascending; one entry per stratum."""

    longest: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    #: Sum of p(l) l: what a stratum adds to E[l].
    tokens: NDArray[np.float64]
    #: Mean length, tokens.
    mean: NDArray[np.float64]


class LengthDistribution:
    """Prompt lengths l with their probabilities p(l), ascending."""

    lengths: NDArray[np.int64]
    probabilities: NDArray[np.float64]

    def __init__(self, lengths: ArrayLike, probabilities: ArrayLike) -> None:
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.probabilities = np.asarray(probabilities, dtype=np.float64)
        if not self.lengths.size or self.lengths.shape != self.probabilities.shape:
            raise ValueError("lengths: as many lengths as probabilities are needed, and at least one")
        if self.lengths[0] < 1 or (np.diff(self.lengths) <= 0).any():
            raise ValueError("lengths: must be positive and ascending")
        if not (self.probabilities >= 0).all() or abs(float(self.probabilities.sum()) - 1) > 1e-9:
            raise ValueError("probabilities: none may be negative, and together they must be 1")

    @classmethod
    def of_samples(cls, samples: Sequence[int] | NDArray[np.int64]) -> LengthDistribution:
        """Every sample equally likely."""
        given = np.asarray(samples, dtype=np.int64)
        # What was counted needs no further checks but these; read as unsigned, a negative length is a very long one.
        distribution = cls.__new__(cls)
        if not given.size or given.view(np.uint64).max() > LONGEST_COUNTED:
            distribution.lengths, counts = np.unique(given, return_counts=True)
        else:
            table = np.bincount(given)
            distribution.lengths = np.flatnonzero(table)
            counts = table[distribution.lengths]
        if not given.size or distribution.lengths[0] < 1:
            raise ValueError("lengths: at least one sample is needed, and every sample must be positive")
        distribution.probabilities = counts / given.size
        return distribution

    @property
    def mean(self) -> float:
        """E[l], tokens."""
        return float(self.lengths @ self.probabilities)

    def strata(self, most: int) -> Strata:
        """At most ``most`` groups, cut evenly by requests and by the logarithm of l, as the ratio of two lengths tells
        how much dearer one is. Lengths that never occur are left out."""
        lengths, probabilities = self.lengths, self.probabilities
        if not probabilities.all():
            occur = np.flatnonzero(probabilities)
            lengths, probabilities = lengths[occur], probabilities[occur]
        tokens = lengths * probabilities
        if lengths.size <= most:
            return Strata(lengths, probabilities, tokens, lengths.astype(np.float64))
        ratios = np.log(lengths / lengths[0])
        ends = even_cuts(np.cumsum(probabilities) + ratios / ratios[-1], most)
        starts = np.append(0, ends[:-1] + 1)
        share = np.add.reduceat(probabilities, starts)
        weight = np.add.reduceat(tokens, starts)
        return Strata(lengths[ends], share, weight, weight / share)


class OutputLengths:
    """Answer lengths seen so far; tells how many tokens an answer still has, given that it has ``n`` already."""

    def __init__(self, samples: Sequence[int]) -> None:
        if not samples:
            raise ValueError("samples: at least one answer length is needed")
        self._sorted = sorted(samples)
        self._tail_sums = [0]
        for length in reversed(self._sorted):
            self._tail_sums.append(self._tail_sums[-1] + length)
        #: Tokens.
        self.mean = self._tail_sums[-1] / len(self._sorted)

    def expected_remaining(self, accepted: int, max_tokens: int) -> float:
        """Mean residual life at ``accepted`` tokens, capped by what ``max_tokens`` leaves (paper 7).

        Beyond the longest answer seen, a constant hazard is assumed: the mean of all.
        """
        longer = len(self._sorted) - bisect_right(self._sorted, accepted)
        residual = self._tail_sums[longer] / longer - accepted if longer else self.mean
        return min(residual, float(max_tokens - accepted))


def exponential_quantiles(mean: float, count: int) -> list[int]:
    """A guess before anything was seen: ``count`` equally likely lengths, exponentially distributed."""
    return [max(1, round(-mean * math.log(1 - (rank + 0.5) / count))) for rank in range(count)]
