"""How low the P99 of TTFT could have been on given requests, at a given spend: bounds that no policy can pass.

F is known exactly and nothing but the P99 counts. To have all but a few answers within x seconds, whatever answers
later needs the other side in time; what that costs is known, and the cheapest of it is bought first.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from serve_app.sim.bounds import Floats

#: Rounding, in shares of all requests and in seconds: a + b - b may be a little less than a.
_EPSILON = 1e-12


def least_with_waits(
    server: Floats, prompts: Floats, answers: Floats, chance: Floats, share: float, late: float
) -> float:
    """The smallest x in seconds with P(TTFT > x) <= ``late``, if waits w(l) spend ``share`` (device-constrained).

    ``server``: judged T_s, sorted. ``prompts``: lengths, with the probability and T_d of each. A device that is to have
    answered after x seconds starts x - T_d(l) after the server, or not at all.
    """
    limit = share * float(prompts @ chance)

    def exceeding(x: float) -> float:
        waits = x - answers
        later = 1 - np.searchsorted(server, waits + _EPSILON, side="right") / server.size
        served = _cheapest(prompts * np.where(waits > _EPSILON, later, 1.0), chance, waits >= -_EPSILON, limit)
        return float((server > x).mean()) * (1 - served)

    moments = np.concatenate([server, answers, (server[:, None] + answers).ravel()])
    return _smallest(np.unique(moments), exceeding, late)


def least_with_races(
    server: Floats, prompts: Floats, answers: Floats, chance: Floats, share: float, late: float
) -> float:
    """The smallest x in seconds with P(TTFT > x) <= ``late``, if races spend ``share`` (server-constrained)."""
    limit = share * float(prompts @ chance)

    def exceeding(x: float) -> float:
        slow = answers > x
        raced = _cheapest(prompts, chance, slow, limit)
        return float(chance @ slow) - raced * float((server <= x).mean())

    return _smallest(np.unique(np.concatenate([server, answers])), exceeding, late)


def _cheapest(price: Floats, chance: Floats, useful: NDArray[np.bool_], limit: float) -> float:
    """Share of all requests that ``limit`` tokens pay for, at ``price`` tokens for one of each kind."""
    order = np.flatnonzero(useful)
    order = order[np.argsort(price[order], kind="stable")]
    spent = np.cumsum(np.concatenate([[0.0], (price * chance)[order]]))
    bought = np.cumsum(np.concatenate([[0.0], chance[order]]))
    whole = int(np.searchsorted(spent, limit * (1 + _EPSILON), side="right")) - 1
    if whole == order.size:
        return float(bought[-1])
    return float(bought[whole] + (limit - spent[whole]) / price[order[whole]])


def _smallest(moments: Floats, exceeding: Callable[[float], float], late: float) -> float:
    """``exceeding`` falls with x, and only at ``moments``; at the last of them it is 0."""
    low, high = 0, moments.size - 1
    while low < high:
        middle = (low + high) // 2
        if exceeding(float(moments[middle])) <= late + _EPSILON:
            high = middle
        else:
            low = middle + 1
    return float(moments[low])
