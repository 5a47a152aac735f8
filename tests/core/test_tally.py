from __future__ import annotations

from typing import Any

import pytest

from serve_app.core.cost import CostModel, UnitCost
from serve_app.core.model import EndpointKind
from serve_app.core.tally import Tally
from tests.support.session_stage import CLOUD, LAPTOP, PHONE

COSTS = CostModel({"cloud": UnitCost(1.0, 10.0), "phone": UnitCost(2.0, 3.0), "laptop": UnitCost(0.5, 1.0)})


def report(winner: str | None = "phone", answer: int = 4, cost: float = 7.0, *moves: tuple[str, str]) -> dict[str, Any]:
    return {
        "winner": winner,
        "legs": [{"endpoint": "cloud", "cost_usd": cost - 5.0}, {"endpoint": "phone", "cost_usd": 5.0}],
        "migrations": [{"reason": reason, "outcome": outcome} for reason, outcome in moves],
        "prompt_tokens": 6,
        "completion_tokens": answer,
        "cost_usd": cost,
    }


def test_it_counts_streams_wins_moves_and_what_each_endpoint_cost() -> None:
    tally = Tally()
    tally.add(report("phone", 4, 7.0, ("migration", "completed"), ("resume", "completed")), (CLOUD, PHONE), COSTS)
    tally.add(report("phone", 4, 9.0, ("rescue", "completed"), ("migration", "abandoned")), (CLOUD, PHONE), COSTS)
    tally.add(report(None, 0, 5.0), (CLOUD, PHONE), COSTS)
    assert (tally.streams, tally.moves, dict(tally.wins)) == (3, 2, {"phone": 2})
    assert tally.cost == {"cloud": 6.0, "phone": 15.0}


def test_an_answer_is_compared_with_the_cheapest_endpoint_of_each_kind_that_might_have_given_it() -> None:
    tally = Tally()
    tally.add(report(), (CLOUD, PHONE, LAPTOP), COSTS)
    tally.add(report(), (CLOUD, PHONE), COSTS)
    compared = tally.comparison
    assert (compared.answers, compared.spent) == (2, 14.0)
    assert compared.alone == {
        EndpointKind.CLOUD: pytest.approx(2 * (6 * 1.0 + 4 * 10.0)),
        EndpointKind.DEVICE: pytest.approx((6 * 0.5 + 4 * 1.0) + (6 * 2.0 + 4 * 3.0)),
    }


@pytest.mark.parametrize(("eligible", "answer"), [((CLOUD,), 4), ((PHONE, LAPTOP), 4), ((CLOUD, PHONE), 0)])
def test_what_one_side_alone_could_have_given_is_compared_with_nothing(eligible: Any, answer: int) -> None:
    tally = Tally()
    tally.add(report(answer=answer), eligible, COSTS)
    assert (tally.streams, tally.comparison.answers, tally.comparison.spent) == (1, 0, 0.0)
