from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.core.hull import FLAT, Plan, edge_at

#: Costs and gains of plans; the first and the last are on the hull.
POINTS = [(0.0, 0.0), (1.0, 5.0), (2.0, 6.0), (3.0, 9.0), (4.0, 9.5), (5.0, 10.0)]


def plans(points: list[tuple[float, float]]) -> list[Plan[np.int64]]:
    return [Plan(cost, gain, np.array([number])) for number, (cost, gain) in enumerate(points)]


@pytest.mark.parametrize(
    ("cost", "ends", "share"),
    [(0.0, (0, 1), 0.0), (0.5, (0, 1), 0.5), (1.0, (1, 3), 0.0), (2.5, (1, 3), 0.75), (4.5, (3, 5), 0.75)],
)
def test_the_edge_leaves_out_what_lies_below_it(cost: float, ends: tuple[int, int], share: float) -> None:
    known = plans(POINTS)
    edge = edge_at(cost, known[0], known[-1], lambda price: max(known, key=lambda plan: plan.gain - price * plan.cost))
    assert (int(edge.below.choice[0]), int(edge.above.choice[0])) == ends
    assert edge.share == pytest.approx(share)


coordinates = st.floats(0.01, 100)


@given(st.lists(st.tuples(coordinates, coordinates), min_size=1, max_size=30), st.floats(0, 1))
def test_no_mixture_of_two_plans_gains_more(inside: list[tuple[float, float]], place: float) -> None:
    known = plans([(0.0, 0.0), *inside])
    richest = max(known, key=lambda plan: (plan.gain, -plan.cost))
    cost = place * richest.cost * 0.999
    edge = edge_at(cost, known[0], richest, lambda price: max(known, key=lambda plan: plan.gain - price * plan.cost))
    gained = edge.below.gain + edge.share * (edge.above.gain - edge.below.gain)
    assert edge.below.cost + edge.share * (edge.above.cost - edge.below.cost) == pytest.approx(cost)
    for below in known:
        for above in known:
            if below.cost <= cost < above.cost:
                share = (cost - below.cost) / (above.cost - below.cost)
                assert below.gain + share * (above.gain - below.gain) <= gained + FLAT * richest.gain + 1e-9
