"""What the reader perceives (paper section 8). Arrival times are seconds since the request; rates tokens per second."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise


def shown_times(arrivals: Sequence[float], rate: float) -> list[float]:
    """s_i = max(a_i, d_i) with d_i = a_1 + (i - 1) / r_c: the reader may catch up after a stall."""
    return [max(arrival, arrivals[0] + i / rate) for i, arrival in enumerate(arrivals)]


def perceived_tbts(arrivals: Sequence[float], rate: float) -> list[float]:
    """TBT_i = s_i - s_{i-1}, seconds."""
    return gaps(shown_times(arrivals, rate))


def gaps(times: Sequence[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(times)]


def delay_num(arrivals: Sequence[float], rate: float, after: int) -> int:
    """The number of tokens from index ``after`` on, the migration's, that arrive later than the reader wants them."""
    return sum(arrival > arrivals[0] + i / rate for i, arrival in enumerate(arrivals) if i >= after)


def percentile(values: Sequence[float], q: float) -> float:
    """The smallest value that at least the share ``q`` of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered) - 1e-9) - 1)]


def qoe(arrivals: Sequence[float], rate: float, expected_ttft: float) -> float:
    """Andes' quality of experience: 1 - sum(T_actual - T_ideal) / sum(T_actual - T_start), 1 is best.

    T_ideal is the reader's own schedule after ``expected_ttft`` seconds; T_actual is when each token is consumed: not
    before it arrives, nor faster than ``rate``.
    """
    actual: list[float] = []
    for i, arrival in enumerate(arrivals):
        ideal = expected_ttft + i / rate
        actual.append(max(arrival, ideal, actual[-1] + 1 / rate if actual else 0.0))
    late = sum(t - (expected_ttft + i / rate) for i, t in enumerate(actual))
    return 1.0 - late / sum(actual)
