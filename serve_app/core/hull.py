"""The edge of a concave hull above a given cost, found by walking inwards from two of its points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

#: Height above an edge that counts as none, relative to the gain.
FLAT: Final = 1e-4

Choice = TypeVar("Choice", np.int64, np.float64)


@dataclass(frozen=True, slots=True)
class Plan(Generic[Choice]):
    """``choice``: what it does with each stratum of lengths."""

    cost: float
    gain: float
    choice: NDArray[Choice]


class Edge(NamedTuple, Generic[Choice]):
    """Two plans whose mixture, with ``share`` of ``above``, has exactly the cost asked for; no mixture gains more."""

    below: Plan[Choice]
    above: Plan[Choice]
    share: float


def edge_at(
    cost: float, below: Plan[Choice], above: Plan[Choice], best: Callable[[float], Plan[Choice]]
) -> Edge[Choice]:
    """``below`` costs at most ``cost``, ``above`` more; both are on the hull.

    ``best``: the plan with the largest gain - price * cost for a given price, which is the multiplier of the cost. With
    the price of the edge that is known so far, it is the plan farthest above that edge, and one end moves there.
    """
    flat = FLAT * max(abs(below.gain), abs(above.gain))
    while True:
        price = (above.gain - below.gain) / (above.cost - below.cost)
        farthest = best(price)
        if farthest.gain - below.gain - price * (farthest.cost - below.cost) <= flat:
            return Edge(below, above, (cost - below.cost) / (above.cost - below.cost))
        if farthest.cost <= cost:
            below = farthest
        else:
            above = farthest
