from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from serve_app.core.cost import UnitCost
from serve_app.core.latency import EmpiricalTtft, LatencyProfile, LinearTtft
from serve_app.core.migration import MigrationMode
from serve_app.core.stats import delay_num, perceived_tbts
from serve_app.sim.migration import MoveRule, cost, expected_remaining, move

DEAR, CHEAP = UnitCost(1e-5, 3e-5), UnitCost(1e-7, 2e-7)
REMAINING = np.full(600, 200.0)


def rule(source_rate: float, target: LatencyProfile, reader: float = 4.8, network: float = 0.1) -> MoveRule:
    source = LatencyProfile(LinearTtft(0.01, 0.2), 100.0, source_rate)
    return MoveRule(MigrationMode.BREAK, reader, network, source, target, DEAR, CHEAP, REMAINING)


def device(prefill: float, decode: float) -> LatencyProfile:
    return LatencyProfile(LinearTtft(1 / prefill, 1 / decode), prefill, decode)


def one(n: int) -> np.ndarray:
    return np.array([n])


@pytest.mark.parametrize(
    ("used", "at_token"),
    [
        (rule(50, device(80, 20), reader=5, network=0.05), 6),
        (rule(14, device(2000, 50)), 2),
    ],
)
def test_the_first_token_whose_lead_hides_the_handover(used: MoveRule, at_token: int) -> None:
    moves = move(used, one(60), one(150), None)
    assert moves.at_token.tolist() == [at_token]
    assert (moves.source_tokens[0], moves.target_tokens[0]) == (at_token, 150 - at_token)
    assert moves.target_prefill.tolist() == [60 + at_token]
    assert moves.delay_num.tolist() == [0]


def test_a_move_needs_a_rest_that_is_worth_its_prefill() -> None:
    # Break-even at 28.9 tokens: .32 $/M apart, .14 $/M to prefill 66 tokens.
    used = replace(
        rule(50, device(80, 20), reader=5, network=0.05),
        source_cost=UnitCost(0, 0.42e-6),
        target_cost=UnitCost(0.14e-6, 0.10e-6),
    )
    for rest, moved in ((28.8, 0), (29.0, 6)):
        assert move(replace(used, remaining=np.full(600, rest)), one(60), one(12), None).at_token.tolist() == [moved]


def test_a_handover_longer_than_any_lead_is_declined() -> None:
    slow = LatencyProfile(EmpiricalTtft([60.0]), 1e6, 20.0)
    moves = move(rule(50, slow), one(60), one(500), np.array([60.0]))
    assert not moves.moved.any()
    assert moves.source_tokens.tolist() == [500]
    assert cost(rule(50, slow), moves).tolist() == pytest.approx([500 * DEAR.decode])


@pytest.mark.parametrize("rates", [(20.0, 14.0), (9.0, 30.0), (60.0, 3.0)])
@pytest.mark.parametrize("late", [0.0, 0.3, 2.5])
def test_what_the_reader_sees_is_what_the_timeline_says(rates: tuple[float, float], late: float) -> None:
    source_rate, target_rate = rates
    target = LatencyProfile(EmpiricalTtft([0.5]), 1e6, target_rate)
    used = rule(source_rate, target)
    moves = move(used, one(30), one(60), np.array([0.5 + late]))
    at = int(moves.at_token[0])
    assert at > 0
    delivered = (at - 1) / source_rate + 0.1 + 0.5 + late
    arrivals = [i / source_rate for i in range(at)] + [delivered + k / target_rate for k in range(60 - at)]
    assert moves.delay_num[0] == delay_num(arrivals, 4.8, at)
    assert moves.longest_gap[0] == pytest.approx(max(perceived_tbts(arrivals, 4.8)))


def test_overlap_stays_with_the_source_where_the_target_comes_too_late() -> None:
    target = LatencyProfile(EmpiricalTtft([0.5]), 1e6, 30.0)
    used = replace(rule(20, target), mode=MigrationMode.OVERLAP)
    on_time, late = (move(used, one(30), one(60), np.array([ttft])) for ttft in (0.5, 3.0))
    assert on_time.completed.all()
    assert on_time.source_tokens[0] == 1 + int(((on_time.at_token[0] - 1) / 20 + 0.6) * 20)
    assert late.moved.all()
    assert not late.completed.any()
    assert (late.source_tokens[0], late.target_tokens[0], late.target_prefill[0]) == (60, 0, 30 + late.at_token[0])
    for moves in (on_time, late):
        assert moves.delay_num[0] == 0
        assert moves.longest_gap[0] == pytest.approx(1 / 4.8)


def test_a_parked_prefill_shortens_the_handover_and_spares_the_prompt() -> None:
    used = rule(50, device(30, 14))
    plain = move(used, one(60), one(150), None)
    parked = move(used, one(60), one(150), None, np.array([5.0]))
    begun = move(used, one(60), one(150), None, np.array([0.1]))
    assert parked.at_token[0] < begun.at_token[0] <= plain.at_token[0]
    assert parked.target_prefill[0] == parked.at_token[0]
    assert cost(used, parked)[0] < cost(used, plain)[0]


def test_what_remains_is_the_mean_residual_life() -> None:
    remaining = expected_remaining(np.array([2, 4, 900]), max_tokens=10)
    assert remaining[0] == pytest.approx((2 + 4 + 10) / 3)
    assert remaining[3] == pytest.approx((1 + 7) / 2)
    assert remaining[10] == 0
