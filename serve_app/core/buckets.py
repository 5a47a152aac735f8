"""Server TTFTs counted by the leading bits of their floats: a distribution of many samples without sorting them."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from serve_app.core.cuts import even_cuts
from serve_app.core.latency import MOST_WAITS, Waits, waits_of

#: Bits of the mantissa that tell buckets apart: each is at most 1/128 of its value wide.
_KEPT: Final = 7
_SHIFT: Final = 52 - _KEPT
#: The bits of 2**-10: TTFTs below a millisecond share one bucket.
_SHORTEST: Final = int(np.array(2.0**-10).view(np.int64))
#: Samples whose buckets are looked up at once: few enough that nothing large is allocated.
_AT_ONCE: Final = 15_000
_INFINITY: Final = int(np.array(np.inf).view(np.int64))

Number = TypeVar("Number", np.int64, np.float64)


class BucketedTtft:
    """Observed TTFTs in seconds. Quantiles are exact; for means, F is taken as linear within a bucket."""

    def __init__(self, samples: ArrayLike) -> None:
        self.samples: NDArray[np.float64] = np.ascontiguousarray(samples, dtype=np.float64)
        if self.samples.ndim != 1 or not self.samples.size:
            raise ValueError("samples: at least one TTFT is needed")
        # Floats that are not negative are ordered like their bits, with infinity at the end.
        bits = self.samples.view(np.int64)
        smallest, highest = self.samples.min(), int(bits.max())
        if not smallest >= 0 or highest >= _INFINITY:
            raise ValueError("samples: every TTFT must be a finite number of seconds, not negative")
        lowest = int(smallest.view(np.int64))
        clipped = lowest < _SHORTEST
        if clipped:
            bits = np.maximum(bits, _SHORTEST)
            lowest, highest = _SHORTEST, max(highest, _SHORTEST)
        self._first = lowest >> _SHIFT
        counts = _count(bits, self._first, (highest >> _SHIFT) - self._first + 1)
        #: Samples in all buckets before each one, and in all.
        self._before = _sums(counts)
        self._bounds = (np.arange(self._first, self._first + counts.size + 1) << _SHIFT).view(np.float64)
        if clipped:
            self._bounds[0] = 0.0

    @property
    def size(self) -> int:
        return self.samples.size

    def quantile(self, q: float) -> float:
        """F^-1(q): the smallest sample x with F(x) >= q."""
        rank = min(max(math.ceil(q * self.samples.size - 1e-9), 1), self.samples.size)
        bucket = int(self._before.searchsorted(rank)) - 1
        inside = self.samples >= self._bounds[bucket]
        inside &= self.samples < self._bounds[bucket + 1]
        nth = rank - 1 - int(self._before[bucket])
        return float(np.partition(self.samples[inside], nth)[nth])

    def answered(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Probability that the next answer takes at most x, or less: samples in the bucket of x do not count."""
        answered: NDArray[np.int64] = np.append(0, self._before).take(self._place(x), mode="clip")
        return answered / (self.samples.size + 1)

    def mean_excess(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """E[(T - x)+], seconds, for finite x."""
        _, level, slope = self._lines
        place = self._place(x)
        excess: NDArray[np.float64] = slope.take(place, mode="clip")
        excess *= x
        np.subtract(level.take(place, mode="clip"), excess, out=excess)
        np.maximum(excess, 0.0, out=excess)
        return excess

    def waits(self) -> Waits:
        """The upper bounds of buckets stand for their samples: as many of them for equal shares of F as of the mean."""
        lived = self._lines.lived
        cuts = even_cuts(self._before[1:] * (lived[-1] / self.size) + lived[1:], MOST_WAITS - 2)
        ranks = self._before[1:][cuts]
        ranks = ranks[np.append(np.diff(ranks) > 0, True)]
        # In a gap between samples the first bound is the one to wait for.
        return waits_of(self._bounds[self._before.searchsorted(ranks)], ranks, self.size)

    @cached_property
    def _lines(self) -> _Lines:
        later = 1 - self._before / self.size
        mean_later = (later[1:] + later[:-1]) / 2
        lived = _sums(mean_later * np.diff(self._bounds))
        excess = lived[-1] - lived
        slope = np.concatenate([[1.0], mean_later, [0.0]])
        starts = np.concatenate([self._bounds[:1], self._bounds])
        return _Lines(lived, np.concatenate([excess[:1], excess]) + slope * starts, slope)

    def _place(self, x: NDArray[np.float64]) -> NDArray[np.int64]:
        """At most 0: below the first bucket; 1: in it, and so on."""
        place = x.view(np.int64) >> _SHIFT
        place -= self._first - 1
        return place


class _Lines(NamedTuple):
    """lived: E[min(T, x)] at every bound. E[(T - x)+] = level - slope x below the first bucket, in each, and above the
    last."""

    lived: NDArray[np.float64]
    level: NDArray[np.float64]
    slope: NDArray[np.float64]


def _count(bits: NDArray[np.int64], first: int, buckets: int) -> NDArray[np.int64]:
    counts = np.zeros(buckets, dtype=np.int64)
    for start in range(0, bits.size, _AT_ONCE):
        bucket = bits[start : start + _AT_ONCE] >> _SHIFT
        bucket -= first
        counts += np.bincount(bucket, minlength=buckets)
    return counts


def _sums(terms: NDArray[Number]) -> NDArray[Number]:
    """Running sums, from 0 on."""
    sums = np.zeros(terms.size + 1, dtype=terms.dtype)
    np.cumsum(terms, out=sums[1:])
    return sums
