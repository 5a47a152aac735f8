"""When requests come: at random, or as they came to measured services, at whatever mean distance is wanted."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from serve_app.sim.public import ClientRates

Floats = NDArray[np.float64]


def poisson(count: int, mean_gap: float, rng: np.random.Generator) -> Floats:
    """Seconds, ascending; gaps of ``mean_gap`` seconds on average, without memory."""
    return np.cumsum(rng.exponential(mean_gap, count))


def rescaled(arrivals: Floats, count: int, mean_gap: float) -> Floats:
    """A trace's pattern, repeated to ``count`` requests and stretched to ``mean_gap`` seconds on average."""
    gaps = np.diff(arrivals)
    if gaps.size == 0 or gaps.sum() <= 0:
        raise ValueError("arrivals: at least two different instants are needed")
    repeated = np.resize(gaps, count)
    return np.cumsum(repeated * (mean_gap / repeated.mean()))


def client(rates: ClientRates, count: int, mean_gap: float, rng: np.random.Generator) -> Floats:
    """A ServeGen client, its rate rescaled to one request per ``mean_gap`` seconds on average.

    Each window keeps its share of the requests and its distribution of gaps; the days repeat as often as needed. What
    is left of the busier or quieter part of the days that ``count`` requests reach into is evened out.
    """
    busy = np.array([name != "" for name in rates.family]) & (rates.rate > 0)
    if not busy.any():
        raise ValueError(f"{rates.name}: no window has requests")
    window = float(np.median(np.diff(rates.start))) if rates.start.size > 1 else mean_gap
    stretch = mean_gap * float(np.where(busy, rates.rate, 0.0).mean())
    chunks: list[Floats] = []
    found, rank, origin, now = 0, 0, 0.0, 0.0
    while found < count:
        row = rank % rates.start.size
        if busy[row]:
            times = now + np.cumsum(_gaps(rates, row, window, stretch, rng))
            inside = times[times < origin + window]
            chunks.append(inside)
            found += inside.size
            # The gap that leads out of this window ends in the next ones.
            now = float(times[inside.size])
        now = max(now, origin + window)
        origin += window
        rank += 1
    arrivals: Floats = np.concatenate(chunks)[:count]
    arrivals *= mean_gap * count / arrivals[-1]
    return arrivals


def _gaps(rates: ClientRates, row: int, window: float, stretch: float, rng: np.random.Generator) -> Floats:
    """Enough gaps to leave a window, stretched."""
    shape, scale = float(rates.shape[row]), float(rates.scale[row])
    expected = window * float(rates.rate[row]) / stretch
    gaps: Floats = np.empty(0)
    while gaps.sum() < window:
        count = int(2 * expected) + 16
        unit = rng.gamma(shape, 1.0, count) if rates.family[row] == "Gamma" else rng.weibull(shape, count)
        gaps = np.concatenate([gaps, unit * scale * stretch])
    return gaps
