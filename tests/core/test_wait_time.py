from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.core.latency import EmpiricalTtft, LinearTtft
from serve_app.core.lengths import LengthDistribution
from serve_app.core.wait_time import WaitTable, fit_waits
from tests.support.plans import DISTRIBUTIONS, SHARES, TTFTS, device_spend

TTFT = EmpiricalTtft([0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.5, 3.0, 8.0])
LENGTHS = LengthDistribution([10, 20, 40, 80], [0.4, 0.3, 0.2, 0.1])


def waits(table: WaitTable, lengths: Iterable[int]) -> list[float]:
    return [table.start(length, 0.5).device for length in lengths]


@pytest.mark.parametrize(
    ("budget", "expected", "spend"),
    [
        (0.3, [0.0, 1.0, 3.0, 3.0], 7.4),
        (0.12, [1.5, 3.0, 3.0, 3.0], 3.0),
        (0.05, [8.0, 8.0, 8.0, 8.0], 0.0),
        (0.1, [3.0, 3.0, 3.0, 3.0], 2.6),
        (0.9, [0.0, 0.0, 0.0, 0.5], 22.8),
        (1.0, [0.0, 0.0, 0.0, 0.0], 26.0),
    ],
)
def test_worked_example(budget: float, expected: list[float], spend: float) -> None:
    table = fit_waits(TTFT, LENGTHS, budget, tail_share=0.1)
    assert waits(table, (10, 20, 40, 80)) == expected
    assert device_spend(table, TTFT, LENGTHS) == pytest.approx(spend)
    assert spend <= budget * LENGTHS.mean + 1e-9


def test_unseen_lengths_wait_like_the_next_longer_one() -> None:
    table = fit_waits(TTFT, LENGTHS, 0.3, tail_share=0.1)
    assert waits(table, (1, 11, 39, 81, 5000)) == [0.0, 1.0, 3.0, 3.0, 3.0]


def test_an_unseen_long_prompt_waits_for_the_tail_even_if_every_seen_one_races() -> None:
    table = fit_waits(TTFT, LENGTHS, 1.0, tail_share=0.1)
    assert waits(table, (80, 81)) == [0.0, 3.0]


def test_without_a_budget_the_device_never_starts() -> None:
    table = fit_waits(TTFT, LENGTHS, 0.0, tail_share=0.05)
    assert device_spend(table, TTFT, LENGTHS) == 0.0


def test_rounding_lets_nobody_wait_beyond_the_tail() -> None:
    lengths = LengthDistribution([1000, 1001], [1 - 1e-9, 1e-9])
    short = float(lengths.lengths[0] * lengths.probabilities[0]) / lengths.mean
    for rounded in (1 - 5e-13, 1.0, 1 + 5e-13):
        table = fit_waits(TTFT, lengths, (0.1 + 0.9 * short) * rounded, tail_share=0.1)
        assert table.waits[0] == 0.0
        assert table.waits[1] <= table.tail == 3.0


@given(TTFTS, DISTRIBUTIONS)
def test_a_budget_for_everything_makes_every_request_a_race(ttft: EmpiricalTtft, lengths: LengthDistribution) -> None:
    assert not fit_waits(ttft, lengths, 1.0, tail_share=0.0).waits.any()


@given(TTFTS, DISTRIBUTIONS, SHARES, SHARES)
def test_the_expected_spend_stays_within_the_budget(
    ttft: EmpiricalTtft, lengths: LengthDistribution, budget: float, tail_share: float
) -> None:
    table = fit_waits(ttft, lengths, budget, tail_share)
    assert device_spend(table, ttft, lengths) <= budget * lengths.mean * (1 + 1e-6) + 1e-6


@given(TTFTS, DISTRIBUTIONS, SHARES, SHARES)
def test_longer_prompts_never_wait_less(
    ttft: EmpiricalTtft, lengths: LengthDistribution, budget: float, tail_share: float
) -> None:
    table = fit_waits(ttft, lengths, budget, tail_share)
    found = waits(table, range(1, int(lengths.lengths[-1]) + 2))
    assert found == sorted(found)


@given(TTFTS, DISTRIBUTIONS, st.tuples(SHARES, SHARES), SHARES)
def test_a_larger_budget_never_waits_longer(
    ttft: EmpiricalTtft, lengths: LengthDistribution, budgets: tuple[float, float], tail_share: float
) -> None:
    small, large = (fit_waits(ttft, lengths, budget, tail_share) for budget in sorted(budgets))
    assert (large.waits <= small.waits).all()
    assert large.tail <= small.tail


@given(TTFTS, DISTRIBUTIONS, SHARES, SHARES, st.floats(0, 0.1), st.floats(0, 5), st.integers(1, 3000), st.data())
def test_no_request_is_slower_than_the_tail_wait_plus_the_device(
    ttft: EmpiricalTtft,
    lengths: LengthDistribution,
    budget: float,
    tail_share: float,
    slope: float,
    intercept: float,
    prompt: int,
    data: st.DataObject,
) -> None:
    device = LinearTtft(slope, intercept)
    table = fit_waits(ttft, lengths, budget, tail_share)
    server = data.draw(st.sampled_from(ttft.samples.tolist()))
    wait = table.start(prompt, 0.5).device
    first_token = min(server, wait + device.predict(prompt)) if server > wait else server
    assert first_token <= table.tail + device.predict(prompt)


def test_a_table_can_be_kept_from_waiting_for_ever() -> None:
    table = WaitTable(np.array([5, 9]), np.array([0.0, np.inf]), np.inf, np.array([0.0, 4.0]), 0.5)
    kept = table.at_most(3.0)
    assert [kept.start(length, 0.9).device for length in (5, 9, 99)] == [0.0, 3.0, 3.0]
    assert kept.start(9, 0.1).device == 3.0
    assert WaitTable(np.array([5]), np.array([2.0]), 2.0).at_most(3.0).eager is None
