"""Random distributions, and what a plan costs and brings on them: exact sums over F, p(l) and u."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from serve_app.core.latency import EmpiricalTtft, LinearTtft
from serve_app.core.lengths import LengthDistribution
from serve_app.core.optimal_threshold import RaceTable
from serve_app.core.wait_time import WaitTable

TTFTS = st.lists(st.floats(0.01, 60), min_size=1, max_size=60).map(EmpiricalTtft)
DISTRIBUTIONS = st.lists(st.integers(1, 2000), min_size=1, max_size=60).map(LengthDistribution.of_samples)
SHARES = st.floats(0, 1)
DEVICES = st.builds(LinearTtft, st.floats(0, 0.1), st.floats(0, 5))
#: The largest u.
LAST = math.nextafter(1.0, 0.0)


def waits(table: WaitTable, lengths: LengthDistribution, u: float) -> NDArray[np.float64]:
    return table.delays(lengths.lengths, np.full(lengths.lengths.size, u)).device


def _expected(table: WaitTable, of: Callable[[float], float]) -> float:
    return table.share * of(0.0) + (1 - table.share) * of(LAST)


def device_spend(table: WaitTable, ttft: EmpiricalTtft, lengths: LengthDistribution) -> float:
    """E[I_d(l) l] on the samples: the device prefills iff T_s > w(l)."""

    def spend(u: float) -> float:
        starts = [ttft.survival(wait) for wait in waits(table, lengths, u).tolist()]
        return float((lengths.probabilities * lengths.lengths) @ np.array(starts))

    return _expected(table, spend)


def device_account(table: WaitTable, ttft: EmpiricalTtft, lengths: LengthDistribution) -> float:
    """E[I_d(l) l] with the chance 1 - k/(n+1) that the next T_s is longer than the k-th smallest of n."""

    def spend(u: float) -> float:
        found = waits(table, lengths, u)
        starts = np.where(found == 0, 1.0, np.where(np.isinf(found), 0.0, 1 - ttft.answered(found)))
        return float((lengths.probabilities * lengths.lengths) @ starts)

    return _expected(table, spend)


def hedged_mean(table: WaitTable, ttft: EmpiricalTtft, lengths: LengthDistribution, device: LinearTtft) -> float:
    """E[min(T_s, w(l) + T_d(l))], seconds."""

    def mean(u: float) -> float:
        due = waits(table, lengths, u) + device.slope * lengths.lengths + device.intercept
        return float(lengths.probabilities @ np.minimum(ttft.samples, due[:, None]).mean(axis=1))

    return _expected(table, mean)


def race_shares(table: RaceTable, lengths: LengthDistribution) -> NDArray[np.float64]:
    """P(the server starts) by length."""
    return table.shares[np.minimum(np.searchsorted(table.lengths, lengths.lengths), table.lengths.size - 1)]


def raced_ttft(
    shares: NDArray[np.float64], ttft: EmpiricalTtft, lengths: LengthDistribution, device: LinearTtft
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Every possible TTFT with its probability, where a length races the server with the given probability."""
    alone = device.slope * lengths.lengths + device.intercept
    raced = np.minimum(ttft.samples, alone[:, None])
    weight = (lengths.probabilities * shares)[:, None] / ttft.samples.size
    return (
        np.concatenate([alone, raced.ravel()]),
        np.concatenate([lengths.probabilities * (1 - shares), np.broadcast_to(weight, raced.shape).ravel()]),
    )
