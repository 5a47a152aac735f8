"""Time to first token: a distribution for a server, a line for a device (paper section 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from serve_app.core.cuts import even_cuts
from serve_app.core.schedule import NEVER

#: Waits that a fit tries for every length, at most.
MOST_WAITS: Final = 208


class Waits(NamedTuple):
    """Waits worth trying, in seconds, from ``NEVER`` down to 0.

    costs: probability that the device starts, ascending from 0 to 1. For the k-th smallest of n samples it is
        1 - k/(n+1): so often the next answer takes longer. 1 - k/n holds for these samples alone.
    """

    seconds: NDArray[np.float64]
    costs: NDArray[np.float64]


class ServerTtft(Protocol):
    """What a fit needs to know of a server's time to first token T, a distribution F seen in ``size`` samples."""

    @property
    def size(self) -> int: ...

    def quantile(self, q: float) -> float:
        """F^-1(q): the smallest sample x with F(x) >= q."""
        ...

    def answered(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Probability that the next answer takes at most x: k/(n+1) if k of n samples do."""
        ...

    def mean_excess(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """E[(T - x)+], seconds, for finite x."""
        ...

    def waits(self) -> Waits: ...


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

    def within(self, q: float) -> float:
        """Seconds within which the next answer comes with probability q < 1: x_(k), where k/(n+1) reaches q.

        The largest of n samples is good for n/(n+1) only. Beyond it the tail goes on as the largest samples begin it:
        as a power of the chance to take longer (Weissman's estimator), far where it is heavy, hardly where it is light.
        """
        size = self.samples.size
        rank = math.ceil(q * (size + 1) - 1e-9)
        if rank <= size:
            return float(self.samples[max(rank, 1) - 1])
        beyond = math.pow((self._tail_size + 1) / ((size + 1) * (1 - q)), self._tail_index)
        return max(float(self.samples[-1]), float(self.samples[-1 - self._tail_size]) * beyond)

    @property
    def _tail_size(self) -> int:
        return min(math.isqrt(self.samples.size), self.samples.size - 1)

    @cached_property
    def _tail_index(self) -> float:
        """The exponent of that power, by Hill's estimator; 0 where nothing tells it, 1 (no mean any more) at most."""
        start = float(self.samples[-1 - self._tail_size])
        if not self._tail_size or start <= 0:
            return 0.0
        logarithms = np.log(self.samples[-self._tail_size :]) - math.log(start)
        return min(1.0, float(logarithms.mean()))

    def answered(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Probability that the next answer takes at most x: k/(n+1) if k of n samples do."""
        return np.searchsorted(self.samples, x, side="right") / (self.samples.size + 1)

    def mean_excess(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """E[(T - x)+], seconds, for finite x."""
        sums = np.append(np.cumsum(self.samples[::-1])[::-1], 0.0)
        shorter = np.searchsorted(self.samples, x, side="right")
        excess: NDArray[np.float64] = sums[shorter] - (self.samples.size - shorter) * x
        return np.maximum(excess, 0.0) / self.samples.size

    def waits(self) -> Waits:
        """Of more samples than can be tried, as many for equal shares of F as for equal shares of the mean."""
        ranks = np.arange(1, self.samples.size + 1)
        if self.samples.size > MOST_WAITS - 2:
            # Until the next sample: the last one before a gap is worth waiting for, not the first one after it.
            lived = self.mean - self.mean_excess(np.append(self.samples[1:], self.samples[-1]))
            ranks = 1 + even_cuts((self.mean or 1.0) * ranks / ranks.size + lived, MOST_WAITS - 2)
        return waits_of(self.samples[ranks - 1], ranks, self.samples.size)

    def cdf(self, x: float) -> float:
        return float(np.searchsorted(self.samples, x, side="right")) / self.samples.size

    def survival(self, x: float) -> float:
        """P(T > x)."""
        return 1.0 - self.cdf(x)

    @property
    def size(self) -> int:
        return self.samples.size

    @property
    def mean(self) -> float:
        return float(self.samples.mean())


def waits_of(seconds: NDArray[np.float64], ranks: NDArray[np.int64], size: int) -> Waits:
    """``seconds``: samples of these ``ranks`` among ``size``, ascending."""
    costs = 1 - ranks[::-1] / (size + 1)
    return Waits(np.concatenate([[NEVER], seconds[::-1], [0.0]]), np.concatenate([[0.0], costs, [1.0]]))


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
