"""Time to first token: a distribution for a server, a line for a device (paper section 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


class EmpiricalTtft:
    """Observed TTFTs in seconds; every sample equally likely."""

    def __init__(self, samples: ArrayLike) -> None:
        self.samples: NDArray[np.float64] = np.sort(np.asarray(samples, dtype=np.float64))
        if self.samples.ndim != 1 or not self.samples.size:
            raise ValueError("samples: at least one TTFT is needed")
        if not np.isfinite(self.samples).all() or self.samples[0] < 0:
            raise ValueError("samples: every TTFT must be a finite number of seconds, not negative")

    def quantile(self, q: float) -> float:
        """F^-1(q): the smallest sample x with F(x) >= q."""
        rank = math.ceil(q * self.samples.size - 1e-9)
        return float(self.samples[min(max(rank, 1), self.samples.size) - 1])

    def cdf(self, x: float) -> float:
        return float(np.searchsorted(self.samples, x, side="right")) / self.samples.size

    def survival(self, x: float) -> float:
        """P(T > x)."""
        return 1.0 - self.cdf(x)

    @property
    def mean(self) -> float:
        return float(self.samples.mean())


@dataclass(frozen=True, slots=True)
class LinearTtft:
    """T(l) = slope l + intercept; slope in seconds per prompt token, intercept in seconds."""

    slope: float
    intercept: float

    def predict(self, tokens: float) -> float:
        return self.slope * tokens + self.intercept


@dataclass(frozen=True, slots=True)
class LatencyProfile:
    """Rates in tokens per second."""

    ttft: EmpiricalTtft | LinearTtft
    prefill_rate: float
    decode_rate: float

    def expected_ttft(self, prompt_tokens: int) -> float:
        return self.ttft.predict(prompt_tokens) if isinstance(self.ttft, LinearTtft) else self.ttft.mean
