"""Sliding observations of one endpoint, and the latency profile that they amount to."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serve_app.core.latency import EmpiricalTtft, LatencyProfile, LinearTtft
from serve_app.core.watch import Patience

#: Observations below which the prior completes a distribution.
ENOUGH = 30
#: Observations below which the prior takes part in a median, and below which no slope is fitted.
ENOUGH_FOR_MEDIAN = 8
#: Distinct prompt lengths, and the ratio of long (90 %) to short ones (10 %), below which no slope is fitted: over a
#: narrow range, noise decides the slope.
DISTINCT_FOR_SLOPE, SPREAD_FOR_SLOPE = 3, 2.0
#: The share of all legs that nobody suspects of anything.
USUAL = 0.99
#: Newest observations that a line is fitted to: the fit looks at all pairs.
MOST_FOR_SLOPE = 200


@dataclass(frozen=True, slots=True)
class Habits:
    """``first_token`` + ``slope`` l seconds to the first token of a prompt of l tokens, ``further`` between items."""

    first_token: float
    slope: float
    further: float

    def patience(self, tokens: int) -> Patience:
        return Patience(self.first_token + self.slope * tokens, self.further)


class EndpointObservations:
    """TTFTs in seconds with their prompt lengths, decode rates in tokens per second. Impossible ones are ignored."""

    def __init__(self, prior: LatencyProfile, window: int) -> None:
        self._prior = prior
        #: Tokens, seconds, and whether the first token came by then.
        self._ttfts: deque[tuple[int, float, bool]] = deque(maxlen=window)
        self._rates: deque[float] = deque(maxlen=window)
        self._silences: deque[float] = deque(maxlen=window)

    def resize(self, window: int) -> None:
        """Keep the newest ``window`` observations."""
        self._ttfts = deque(self._ttfts, maxlen=window)
        self._rates = deque(self._rates, maxlen=window)
        self._silences = deque(self._silences, maxlen=window)

    @property
    def ttfts_seen(self) -> int:
        return len(self._ttfts)

    def first_token(self, prompt_tokens: int, seconds: float, *, came: bool = True) -> None:
        """``came`` False: nobody waited any longer for it."""
        # Seconds of two clocks are subtracted to get here, so a tiny negative one is possible.
        if math.isfinite(seconds):
            self._ttfts.append((max(1, prompt_tokens), max(0.0, seconds), came))

    def decoded(self, tokens: int, seconds: float) -> None:
        """``tokens`` came in the ``seconds`` after the first one."""
        if tokens > 0 and 0 < seconds < math.inf:
            self._rates.append(tokens / seconds)

    def was_silent(self, seconds: float) -> None:
        """The longest time from one item to the next within one leg."""
        self._silences.append(seconds)

    def usual(self, profile: LatencyProfile) -> Habits:
        """What it takes in 99 of 100 cases, as far as there are observations enough to tell. ``profile``: its own."""
        further = math.inf
        if len(self._silences) >= ENOUGH:
            further = EmpiricalTtft(self._silences).quantile(USUAL)
        if len(self._ttfts) < ENOUGH:
            return Habits(math.inf, 0.0, further)
        seen = np.array(self._ttfts, dtype=np.float64)
        slope = profile.ttft.slope if isinstance(profile.ttft, LinearTtft) else 0.0
        return Habits(EmpiricalTtft(np.maximum(0.0, seen[:, 1] - slope * seen[:, 0])).quantile(USUAL), slope, further)

    def ttft_distribution(self, prompt_lengths: Iterable[int]) -> EmpiricalTtft:
        """F, whatever the prompt: as observed, completed by the prior (for ``prompt_lengths``) up to ENOUGH."""
        prior = self._prior.ttft
        if isinstance(prior, LinearTtft):
            prior = EmpiricalTtft([prior.predict(length) for length in prompt_lengths])
        if not self._ttfts:
            return prior
        missing = max(0, ENOUGH - len(self._ttfts))
        guesses = [prior.quantile((rank + 0.5) / missing) for rank in range(missing)]
        return EmpiricalTtft(self._whole() + guesses)

    def _whole(self) -> list[float]:
        """TTFTs. For one that was not waited for, one that took longer stands in, of those that were: each in its turn,
        so that the tail keeps its shape. What took longer than any is as long as it was waited for."""
        came = sorted(seconds for _, seconds, came in self._ttfts if came)
        cut = sorted(seconds for _, seconds, came in self._ttfts if not came)
        for rank, least in enumerate(cut):
            longer = bisect_right(came, least)
            place = longer + int((rank + 0.5) / len(cut) * (len(came) - longer))
            cut[rank] = came[place] if place < len(came) else least
        return came + cut

    def seldom_later(self, share: float) -> LinearTtft | None:
        """Seconds within which a prompt of l is answered with the probability ``share``, by what was seen.

        None while that is too little: what is late here, a prior cannot say.
        """
        if len(self._ttfts) < ENOUGH_FOR_MEDIAN:
            return None
        if isinstance(self._prior.ttft, EmpiricalTtft):
            return LinearTtft(0.0, self.ttft_distribution(()).within(share))
        line = self._line(self._prior.ttft)
        behind = EmpiricalTtft([max(0.0, ttft - line.predict(length)) for length, ttft, _ in self._ttfts])
        return LinearTtft(line.slope, line.intercept + behind.within(share))

    def profile(self) -> LatencyProfile:
        decode = _median(list(self._rates), self._prior.decode_rate)
        if isinstance(self._prior.ttft, EmpiricalTtft):
            return LatencyProfile(self.ttft_distribution(()), self._prior.prefill_rate, decode)
        line = self._line(self._prior.ttft)
        prefill = 1 / line.slope if line.slope > 0 else self._prior.prefill_rate
        return LatencyProfile(line, prefill, decode)

    def _line(self, prior: LinearTtft) -> LinearTtft:
        if not self._ttfts:
            return prior
        recent = np.array(self._ttfts, dtype=np.float64)[-MOST_FOR_SLOPE:]
        lengths, ttfts = recent[:, 0], recent[:, 1]
        slope = theil_sen_slope(lengths, ttfts) if _tells_a_slope(lengths) else prior.slope
        intercept = _median((ttfts - slope * lengths).tolist(), prior.intercept)
        if intercept < 0:
            # The slope is too steep for what was seen; the line through the origin is the steepest possible one.
            return LinearTtft(float(np.median(ttfts / lengths)), 0.0)
        return LinearTtft(slope, intercept)


def theil_sen_slope(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Median slope over all pairs with different x, not below 0: over a quarter of the points may be outliers."""
    first, second = np.triu_indices(x.size, 1)
    dx = x[second] - x[first]
    apart = dx != 0
    return max(0.0, float(np.median((y[second] - y[first])[apart] / dx[apart])))


def _tells_a_slope(lengths: NDArray[np.float64]) -> bool:
    if lengths.size < ENOUGH_FOR_MEDIAN or np.unique(lengths).size < DISTINCT_FOR_SLOPE:
        return False
    short, long = np.quantile(lengths, (0.1, 0.9))
    return bool(long >= SPREAD_FOR_SLOPE * short)


def _median(values: list[float], prior: float) -> float:
    """The prior stands in for missing values, so that the first few (often a cold start) cannot mislead."""
    missing = max(0, ENOUGH_FOR_MEDIAN - len(values))
    return float(np.median(values + [prior] * missing))
