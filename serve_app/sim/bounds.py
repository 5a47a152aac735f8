"""How good a mean TTFT any policy could have had on given requests, for every spend at once: curves, not policies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Curve:
    """Mean TTFT in seconds against the share of prompt tokens spent: ascending shares, convex, then flat."""

    share: Floats
    mean: Floats

    def at(self, share: float) -> float:
        return float(np.interp(share, self.share, self.mean))


def best_waits(server: Floats, prompts: Floats, answers: Floats, chance: Floats) -> Curve:
    """The in-sample optimum of waits w(l): what F, known exactly, allows (device-constrained).

    ``server``: judged T_s, sorted. ``prompts``: lengths, with the probability and T_d of each. Only the values of F are
    worth waiting for: between two of them, waiting longer costs time and spares nothing.
    """
    size = server.size
    waits = np.concatenate([[0.0], server])
    sums = np.concatenate([[0.0], np.cumsum(server)])
    due = waits[:, None] + answers[None, :]
    earlier = np.searchsorted(server, due.ravel(), side="right").reshape(due.shape)
    means = (sums[earlier] + (size - earlier) * due) / size
    later = (size - np.searchsorted(server, waits, side="right")) / size
    # A wait of 0 is a race, which the device enters whatever T_s is.
    later[0] = 1.0
    segments = [
        _hull(later[::-1] * length, means[::-1, column]) * share
        for column, (length, share) in enumerate(zip(prompts, chance, strict=True))
    ]
    return _curve(np.concatenate(segments), float(server.mean()), float(prompts @ chance))


def best_share(server: Floats, prompts: Floats, answers: Floats, chance: Floats) -> Curve:
    """The in-sample optimum of racing the server for some lengths: by expected gain per token (server-constrained)."""
    sums = np.concatenate([[0.0], np.cumsum(server)])
    earlier = np.searchsorted(server, answers)
    gains = (earlier * answers - sums[earlier]) / server.size
    segments = np.stack([prompts, -gains], axis=1) * chance[:, None]
    return _curve(segments, float(answers @ chance), float(prompts @ chance))


def clairvoyant(cheap: Floats, dear: Floats, prompts: Floats, chance: Floats) -> Curve:
    """The oracle: sees each request's two answers, row by row (T_s) and column by column (l), and picks the best."""
    gain = np.maximum(cheap - dear, 0.0) * chance
    cost = np.broadcast_to(prompts * chance, gain.shape)
    segments = np.stack([cost.ravel(), -gain.ravel()], axis=1) / gain.shape[0]
    return _curve(segments, float(cheap.mean(axis=0) @ chance), float(prompts @ chance))


def _hull(cost: Floats, mean: Floats) -> Floats:
    """Segments (tokens, seconds) of the lower convex hull; ``cost`` ascends."""
    kept: list[tuple[float, float]] = []
    for point in zip(cost.tolist(), mean.tolist(), strict=True):
        while len(kept) > 1 and _above(kept[-2], kept[-1], point):
            kept.pop()
        if kept and point[0] == kept[-1][0]:
            if point[1] >= kept[-1][1]:
                continue
            kept.pop()
        kept.append(point)
    return np.diff(np.array(kept), axis=0)


def _above(first: tuple[float, float], middle: tuple[float, float], last: tuple[float, float]) -> bool:
    """``middle`` is on or above the line from ``first`` to ``last``."""
    run, rise = last[0] - first[0], last[1] - first[1]
    return (middle[1] - first[1]) * run >= rise * (middle[0] - first[0])


def _curve(segments: Floats, start: float, tokens: float) -> Curve:
    """Best segments first. ``tokens``: E[l]; ``start``: the mean of the cheap side alone."""
    useful = segments[(segments[:, 1] < 0) & (segments[:, 0] > 0)]
    useful = useful[np.argsort(useful[:, 1] / useful[:, 0], kind="stable")]
    share = np.concatenate([[0.0], np.cumsum(useful[:, 0]) / tokens])
    mean = np.concatenate([[start], start + np.cumsum(useful[:, 1])])
    return Curve(share, mean)
