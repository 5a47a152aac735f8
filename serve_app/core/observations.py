"""Sliding observations of one endpoint, and the latency profile that they amount to."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from serve_app.core.latency import EmpiricalTtft, LatencyProfile, LinearTtft

#: Observations below which the prior still takes part.
ENOUGH = 30
#: Observations, and distinct lengths among them, below which no slope is fitted.
ENOUGH_FOR_SLOPE = 8
DISTINCT_FOR_SLOPE = 3
#: Newest observations that a line is fitted to: the fit looks at all pairs.
MOST_FOR_SLOPE = 200


class EndpointObservations:
    """TTFTs in seconds with their prompt lengths, decode rates in tokens per second."""

    def __init__(self, prior: LatencyProfile, window: int) -> None:
        self._prior = prior
        self._ttfts: deque[tuple[int, float]] = deque(maxlen=window)
        self._rates: deque[float] = deque(maxlen=window)

    def resize(self, window: int) -> None:
        """Keep the newest ``window`` observations."""
        self._ttfts = deque(self._ttfts, maxlen=window)
        self._rates = deque(self._rates, maxlen=window)

    def first_token(self, prompt_tokens: int, ttft: float) -> None:
        self._ttfts.append((prompt_tokens, ttft))

    def decoded(self, tokens: int, seconds: float) -> None:
        """``tokens`` came in the ``seconds`` after the first one."""
        if tokens > 0 and seconds > 0:
            self._rates.append(tokens / seconds)

    def profile(self) -> LatencyProfile:
        decode = float(np.median(self._rates)) if self._rates else self._prior.decode_rate
        if isinstance(self._prior.ttft, EmpiricalTtft):
            return LatencyProfile(self._empirical(self._prior.ttft), self._prior.prefill_rate, decode)
        line = self._line(self._prior.ttft)
        prefill = 1 / line.slope if line.slope > 0 else self._prior.prefill_rate
        return LatencyProfile(line, prefill, decode)

    def _empirical(self, prior: EmpiricalTtft) -> EmpiricalTtft:
        if not self._ttfts:
            return prior
        observed = np.array([ttft for _, ttft in self._ttfts])
        return EmpiricalTtft(observed if observed.size >= ENOUGH else np.concatenate([prior.samples, observed]))

    def _line(self, prior: LinearTtft) -> LinearTtft:
        if not self._ttfts:
            return prior
        recent = np.array(self._ttfts, dtype=np.float64)[-MOST_FOR_SLOPE:]
        lengths, ttfts = recent[:, 0], recent[:, 1]
        slope = prior.slope
        if lengths.size >= ENOUGH_FOR_SLOPE and np.unique(lengths).size >= DISTINCT_FOR_SLOPE:
            slope = theil_sen_slope(lengths, ttfts)
        return LinearTtft(slope, max(0.0, float(np.median(ttfts - slope * lengths))))


def theil_sen_slope(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Median slope over all pairs with different x, not below 0: a third of the points may be outliers."""
    first, second = np.triu_indices(x.size, 1)
    dx = x[second] - x[first]
    apart = dx != 0
    return max(0.0, float(np.median((y[second] - y[first])[apart] / dx[apart])))
