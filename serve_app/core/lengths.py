"""Lengths of prompts and answers, in tokens."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray


class LengthDistribution:
    """Prompt lengths l with their probabilities p(l), ascending."""

    def __init__(self, lengths: ArrayLike, probabilities: ArrayLike) -> None:
        self.lengths: NDArray[np.int64] = np.asarray(lengths, dtype=np.int64)
        self.probabilities: NDArray[np.float64] = np.asarray(probabilities, dtype=np.float64)
        if not self.lengths.size or self.lengths.shape != self.probabilities.shape:
            raise ValueError("lengths: as many lengths as probabilities are needed, and at least one")
        if self.lengths[0] < 1 or (np.diff(self.lengths) <= 0).any():
            raise ValueError("lengths: must be positive and ascending")
        if not (self.probabilities >= 0).all() or abs(float(self.probabilities.sum()) - 1) > 1e-9:
            raise ValueError("probabilities: none may be negative, and together they must be 1")

    @classmethod
    def of_samples(cls, samples: Sequence[int]) -> LengthDistribution:
        """Every sample equally likely."""
        lengths, counts = np.unique(np.asarray(samples, dtype=np.int64), return_counts=True)
        return cls(lengths, counts / counts.sum())

    @property
    def mean(self) -> float:
        """E[l], tokens."""
        return float(self.lengths @ self.probabilities)


class OutputLengths:
    """Answer lengths seen so far; tells how many tokens an answer still has, given that it has ``n`` already."""

    def __init__(self, samples: Sequence[int]) -> None:
        if not samples:
            raise ValueError("samples: at least one answer length is needed")
        self._sorted = sorted(samples)
        self._tail_sums = [0]
        for length in reversed(self._sorted):
            self._tail_sums.append(self._tail_sums[-1] + length)
        self._mean = self._tail_sums[-1] / len(self._sorted)

    def expected_remaining(self, accepted: int, max_tokens: int) -> float:
        """Mean residual life at ``accepted`` tokens, capped by what ``max_tokens`` leaves (paper 7).

        Beyond the longest answer seen, a constant hazard is assumed: the mean of all.
        """
        longer = len(self._sorted) - bisect_right(self._sorted, accepted)
        residual = self._tail_sums[longer] / longer - accepted if longer else self._mean
        return min(residual, float(max_tokens - accepted))


def exponential_quantiles(mean: float, count: int) -> list[int]:
    """A guess before anything was seen: ``count`` equally likely lengths, exponentially distributed."""
    return [max(1, round(-mean * math.log(1 - (rank + 0.5) / count))) for rank in range(count)]
