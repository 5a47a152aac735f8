from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.core.latency import EmpiricalTtft, LinearTtft
from serve_app.core.lengths import LengthDistribution
from serve_app.core.wait_time import WaitTable, fit_waits

TTFT = EmpiricalTtft([0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.5, 3.0, 8.0])
LENGTHS = LengthDistribution([10, 20, 40, 80], [0.4, 0.3, 0.2, 0.1])

ttfts = st.lists(st.floats(0.01, 60), min_size=1, max_size=60).map(EmpiricalTtft)
distributions = st.lists(st.integers(1, 2000), min_size=1, max_size=60).map(LengthDistribution.of_samples)
shares = st.floats(0, 1)


def expected_spend(table: WaitTable, ttft: EmpiricalTtft, lengths: LengthDistribution) -> float:
    """E[I_d(l) l]: the device prefills iff T_s > w(l)."""
    starts = np.array([ttft.survival(table.wait(int(length))) for length in lengths.lengths])
    return float((lengths.probabilities * lengths.lengths) @ starts)


@pytest.mark.parametrize(
    ("budget", "waits", "spend"),
    [
        (0.3, [0.0, 1.0, 3.0, 3.0], 7.4),
        (0.12, [1.5, 3.0, 3.0, 3.0], 3.0),
        (0.05, [8.0, 8.0, 8.0, 8.0], 0.0),
        (0.1, [3.0, 3.0, 3.0, 3.0], 2.6),
        (0.9, [0.0, 0.0, 0.0, 0.5], 22.8),
        (1.0, [0.0, 0.0, 0.0, 0.0], 26.0),
    ],
)
def test_worked_example(budget: float, waits: list[float], spend: float) -> None:
    table = fit_waits(TTFT, LENGTHS, budget, tail_share=0.1)
    assert [table.wait(length) for length in (10, 20, 40, 80)] == waits
    assert expected_spend(table, TTFT, LENGTHS) == pytest.approx(spend)
    assert spend <= budget * LENGTHS.mean + 1e-9


def test_unseen_lengths_wait_like_the_next_longer_one() -> None:
    table = fit_waits(TTFT, LENGTHS, 0.3, tail_share=0.1)
    assert [table.wait(length) for length in (1, 11, 39, 81, 5000)] == [0.0, 1.0, 3.0, 3.0, 3.0]


def test_an_unseen_long_prompt_waits_for_the_tail_even_if_every_seen_one_races() -> None:
    table = fit_waits(TTFT, LENGTHS, 1.0, tail_share=0.1)
    assert (table.wait(80), table.wait(81)) == (0.0, 3.0)


def test_without_a_budget_the_device_never_starts() -> None:
    table = fit_waits(TTFT, LENGTHS, 0.0, tail_share=0.05)
    assert expected_spend(table, TTFT, LENGTHS) == 0.0


def test_rounding_lets_nobody_wait_beyond_the_tail() -> None:
    lengths = LengthDistribution([1000, 1001], [1 - 1e-9, 1e-9])
    short = float(lengths.lengths[0] * lengths.probabilities[0]) / lengths.mean
    for rounded in (1 - 5e-13, 1.0, 1 + 5e-13):
        table = fit_waits(TTFT, lengths, (0.1 + 0.9 * short) * rounded, tail_share=0.1)
        assert table.waits[0] == 0.0
        assert table.waits[1] <= table.tail == 3.0


@settings(deadline=None)
@given(ttfts, distributions)
def test_a_budget_for_everything_makes_every_request_a_race(ttft: EmpiricalTtft, lengths: LengthDistribution) -> None:
    assert not fit_waits(ttft, lengths, 1.0, tail_share=0.0).waits.any()


@settings(deadline=None)
@given(ttfts, distributions, shares, shares)
def test_the_expected_spend_stays_within_the_budget(
    ttft: EmpiricalTtft, lengths: LengthDistribution, budget: float, tail_share: float
) -> None:
    table = fit_waits(ttft, lengths, budget, tail_share)
    assert expected_spend(table, ttft, lengths) <= budget * lengths.mean * (1 + 1e-6) + 1e-6


@settings(deadline=None)
@given(ttfts, distributions, shares, shares)
def test_longer_prompts_never_wait_less(
    ttft: EmpiricalTtft, lengths: LengthDistribution, budget: float, tail_share: float
) -> None:
    table = fit_waits(ttft, lengths, budget, tail_share)
    waits = [table.wait(length) for length in range(1, int(lengths.lengths[-1]) + 2)]
    assert waits == sorted(waits)


@settings(deadline=None)
@given(ttfts, distributions, st.tuples(shares, shares), shares)
def test_a_larger_budget_never_waits_longer(
    ttft: EmpiricalTtft, lengths: LengthDistribution, budgets: tuple[float, float], tail_share: float
) -> None:
    small, large = (fit_waits(ttft, lengths, budget, tail_share) for budget in sorted(budgets))
    assert (large.waits <= small.waits).all()
    assert large.tail <= small.tail


@settings(deadline=None)
@given(ttfts, distributions, shares, shares, st.floats(0, 0.1), st.floats(0, 5), st.integers(1, 3000), st.data())
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
    wait = table.wait(prompt)
    first_token = min(server, wait + device.predict(prompt)) if server > wait else server
    assert first_token <= table.tail + device.predict(prompt)
