from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from serve_app.core.buckets import BucketedTtft
from serve_app.core.hull import FLAT
from serve_app.core.latency import EmpiricalTtft, LinearTtft
from serve_app.core.lengths import LengthDistribution
from serve_app.core.optimal_threshold import GUARD, MOST_STRATA, TAIL, fit_optimal_threshold
from serve_app.core.threshold import fit_threshold
from tests.support.plans import DEVICES, DISTRIBUTIONS, SHARES, TTFTS, race_shares, raced_ttft

LENGTHS = LengthDistribution([10, 50, 100, 200], [0.25, 0.25, 0.25, 0.25])
#: T_s ~ Exp(mean .5), as 20,000 middles of equal shares.
EXPONENTIAL = -0.5 * np.log1p(-(np.arange(20_000) + 0.5) / 20_000)


def gain(shares: NDArray[np.float64], ttft: EmpiricalTtft, lengths: LengthDistribution, device: LinearTtft) -> float:
    """What the races save on average, seconds."""
    seconds, weights = raced_ttft(shares, ttft, lengths, device)
    alone = device.slope * lengths.lengths + device.intercept
    return float(lengths.probabilities @ alone - weights @ seconds)


def paper_shares(lengths: LengthDistribution, budget: float) -> NDArray[np.float64]:
    fit = fit_threshold(lengths, budget)
    return np.where(lengths.lengths >= fit.threshold, 1.0, np.where(lengths.lengths >= fit.boundary, fit.share, 0.0))


def p99(shares: NDArray[np.float64], ttft: EmpiricalTtft, lengths: LengthDistribution, device: LinearTtft) -> float:
    """The smallest x with P(TTFT > x) <= TAIL, where the server answers by x with probability k/(n+1)."""
    alone = device.slope * lengths.lengths + device.intercept
    for x in np.unique(np.concatenate([alone, ttft.samples])).tolist():
        slow = alone > x
        answered = float(ttft.answered(np.array([x]))[0])
        if lengths.probabilities[slow] @ (1 - shares[slow] * answered) <= TAIL + 1e-12:
            return float(x)
    raise AssertionError("the device always answers")


@pytest.mark.parametrize("ttft", [EmpiricalTtft(EXPONENTIAL), BucketedTtft(EXPONENTIAL)])
def test_a_slow_start_of_the_device_makes_short_prompts_the_best_races(ttft: EmpiricalTtft) -> None:
    device = LinearTtft(0.01, 1.0)
    exact = EmpiricalTtft(EXPONENTIAL)
    per_token = [
        gain(np.eye(4)[row], exact, LENGTHS, device) / (LENGTHS.probabilities[row] * LENGTHS.lengths[row])
        for row in range(4)
    ]
    assert per_token == pytest.approx([0.0655, 0.0205, 0.0151, 0.0125], abs=5e-5)
    table = fit_optimal_threshold(ttft, LENGTHS, device, 0.3, tail_guard=False)
    assert race_shares(table, LENGTHS).tolist() == pytest.approx([1.0, 1.0, 0.48, 0.0])


def test_without_a_fixed_overhead_the_longest_prompts_race_as_in_the_paper() -> None:
    device, ttft = LinearTtft(0.01, 0.0), EmpiricalTtft(EXPONENTIAL)
    table = fit_optimal_threshold(ttft, LENGTHS, device, 0.7, tail_guard=False)
    assert race_shares(table, LENGTHS) == pytest.approx(paper_shares(LENGTHS, 0.7))


@pytest.mark.parametrize("guard", [True, False])
def test_what_no_race_can_gain_is_spent_on_the_longest_prompts(guard: bool) -> None:
    table = fit_optimal_threshold(EmpiricalTtft([2.0, 3.0]), LENGTHS, LinearTtft(0.0, 1.9), 0.5, tail_guard=guard)
    assert race_shares(table, LENGTHS) == pytest.approx([0.0, 0.0, 0.0, 0.9])


def test_lengths_not_seen_race_like_the_next_longer_one_and_the_longest() -> None:
    table = fit_optimal_threshold(EmpiricalTtft(EXPONENTIAL), LENGTHS, LinearTtft(0.01, 1.0), 0.1, tail_guard=False)
    starts = [table.start(length, 0.99).server == 0 for length in (1, 10, 11, 50, 200, 9000)]
    assert starts == [True, True, False, False, False, False]


def test_the_guard_races_slow_prompts_although_fast_ones_gain_more() -> None:
    device, ttft = LinearTtft(0.01, 1.0), EmpiricalTtft(EXPONENTIAL)
    free = race_shares(fit_optimal_threshold(ttft, LENGTHS, device, 0.6, tail_guard=False), LENGTHS)
    guarded = race_shares(fit_optimal_threshold(ttft, LENGTHS, device, 0.6), LENGTHS)
    target = GUARD * p99(np.full(4, 0.6), ttft, LENGTHS, device)
    assert p99(free, ttft, LENGTHS, device) > target >= p99(guarded, ttft, LENGTHS, device)
    assert gain(paper_shares(LENGTHS, 0.6), ttft, LENGTHS, device) < gain(guarded, ttft, LENGTHS, device)
    assert gain(guarded, ttft, LENGTHS, device) < gain(free, ttft, LENGTHS, device)


@given(TTFTS, DISTRIBUTIONS, DEVICES, SHARES, st.booleans())
def test_the_expected_spend_is_the_budget(
    ttft: EmpiricalTtft, lengths: LengthDistribution, device: LinearTtft, budget: float, guard: bool
) -> None:
    shares = race_shares(fit_optimal_threshold(ttft, lengths, device, budget, tail_guard=guard), lengths)
    assert ((shares >= 0) & (shares <= 1)).all()
    assert (lengths.probabilities * lengths.lengths) @ shares == pytest.approx(budget * lengths.mean, abs=1e-9)


@given(TTFTS, DISTRIBUTIONS, DEVICES, SHARES)
def test_no_other_choice_of_lengths_gains_more(
    ttft: EmpiricalTtft, lengths: LengthDistribution, device: LinearTtft, budget: float
) -> None:
    shares = race_shares(fit_optimal_threshold(ttft, lengths, device, budget, tail_guard=False), lengths)
    found = gain(shares, ttft, lengths, device)
    assert found >= gain(paper_shares(lengths, budget), ttft, lengths, device) - 1e-9
    assert found == pytest.approx(best_gain(ttft, lengths, device, budget), abs=1e-9)


@given(TTFTS, DISTRIBUTIONS, DEVICES, SHARES)
@example(EmpiricalTtft(EXPONENTIAL[::20]), LENGTHS, LinearTtft(0.0, 10.0), 0.995)
@example(EmpiricalTtft(EXPONENTIAL[::20]), LENGTHS, LinearTtft(0.01, 2.0), 0.999)
def test_the_guard_holds_or_the_longest_race(
    ttft: EmpiricalTtft, lengths: LengthDistribution, device: LinearTtft, budget: float
) -> None:
    shares = race_shares(fit_optimal_threshold(ttft, lengths, device, budget), lengths)
    target = GUARD * p99(np.full(shares.size, budget), ttft, lengths, device)
    slow = device.slope * lengths.lengths + device.intercept > target
    answered = float(ttft.answered(np.array([target]))[0])
    held = lengths.probabilities[slow] @ (1 - shares[slow] * answered) <= TAIL + 1e-9
    assert held or shares == pytest.approx(paper_shares(lengths, budget), abs=1e-6)


@given(TTFTS, DISTRIBUTIONS, DEVICES, SHARES)
def test_a_guard_costs_no_more_than_the_longest_first_share_that_holds(
    ttft: EmpiricalTtft, lengths: LengthDistribution, device: LinearTtft, budget: float
) -> None:
    guarded = race_shares(fit_optimal_threshold(ttft, lengths, device, budget), lengths)
    papers = paper_shares(lengths, budget)
    target = GUARD * p99(np.full(papers.size, budget), ttft, lengths, device)
    if p99(papers, ttft, lengths, device) <= target:
        scale = gain(np.ones(papers.size), ttft, lengths, device)
        assert gain(guarded, ttft, lengths, device) >= gain(papers, ttft, lengths, device) - FLAT * scale - 1e-9


def test_strata_come_within_two_per_mille_of_the_optimum() -> None:
    prompts = np.maximum(1, np.exp(3.5 + np.random.default_rng(1).standard_normal(20_000))).astype(np.int64)
    lengths, device, ttft = LengthDistribution.of_samples(prompts), LinearTtft(0.02, 0.6), EmpiricalTtft(EXPONENTIAL)
    assert lengths.lengths.size > MOST_STRATA
    alone = device.slope * lengths.mean + device.intercept
    for budget in (0.03, 0.1, 0.3, 0.6):
        best = alone - best_gain(ttft, lengths, device, budget)
        for fitted in (ttft, BucketedTtft(EXPONENTIAL)):
            shares = race_shares(fit_optimal_threshold(fitted, lengths, device, budget, tail_guard=False), lengths)
            assert best - 1e-9 <= alone - gain(shares, ttft, lengths, device) <= best * 1.002


def best_gain(ttft: EmpiricalTtft, lengths: LengthDistribution, device: LinearTtft, budget: float) -> float:
    """By the book: largest gain per token first, the last length in part."""
    left, total = budget * lengths.mean, 0.0
    rows = []
    for length, probability in zip(lengths.lengths.tolist(), lengths.probabilities.tolist(), strict=True):
        saved = probability * float(np.maximum(device.predict(length) - ttft.samples, 0.0).mean())
        rows.append((saved / (probability * length), probability * length, saved))
    for _, tokens, saved in sorted(rows, reverse=True):
        part = min(1.0, left / tokens)
        left, total = left - part * tokens, total + part * saved
    return total
