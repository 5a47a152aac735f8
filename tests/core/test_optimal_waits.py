from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from serve_app.core.buckets import BucketedTtft
from serve_app.core.hull import FLAT
from serve_app.core.latency import EmpiricalTtft, LinearTtft
from serve_app.core.lengths import LengthDistribution
from serve_app.core.optimal_waits import MOST_STRATA, fit_optimal_waits
from serve_app.core.schedule import NEVER
from serve_app.core.wait_time import fit_waits
from tests.support.plans import (
    DEVICES,
    DISTRIBUTIONS,
    LAST,
    SHARES,
    TTFTS,
    device_account,
    device_spend,
    hedged_mean,
    waits,
)

ONE_LENGTH = LengthDistribution([10], [1.0])
#: Of two answers, the device waits for the first with probability 2/3, for both with 1/3.
TWO_ANSWERS = EmpiricalTtft([1.0, 10.0])
HALF_A_SECOND = LinearTtft(0.0, 0.5)


@pytest.mark.parametrize(
    ("budget", "patient", "eager", "share"),
    [(1 / 3, NEVER, 1.0, 0.5), (0.6, NEVER, 1.0, 0.9), (5 / 6, 1.0, 0.0, 0.5), (0.9, 1.0, 0.0, 0.7)],
)
def test_a_budget_between_two_waits_is_spent_on_both(budget: float, patient: float, eager: float, share: float) -> None:
    table = fit_optimal_waits(TWO_ANSWERS, ONE_LENGTH, HALF_A_SECOND, budget)
    assert (table.start(10, LAST).device, table.start(10, 0.0).device) == (patient, eager)
    assert table.share == pytest.approx(share)


def test_waits_that_are_not_on_the_hull_are_not_used() -> None:
    # Waiting for the third answer costs 2/5 and saves .125 s; a race costs 1 and saves .75 s: better seldom, at once.
    ttft = EmpiricalTtft([1.0, 1.0, 1.0, 2.0])
    table = fit_optimal_waits(ttft, ONE_LENGTH, LinearTtft(0.0, 0.5), 0.4)
    assert table.eager is not None
    assert {*table.waits.tolist(), *table.eager.tolist()} == {NEVER, 0.0}
    assert table.share == pytest.approx(0.4)


def test_a_budget_for_everything_makes_every_request_a_race() -> None:
    lengths = LengthDistribution([10, 20, 40, 80], [0.4, 0.3, 0.2, 0.1])
    table = fit_optimal_waits(TWO_ANSWERS, lengths, HALF_A_SECOND, 1.0)
    assert not table.waits.any()
    assert table.start(81, 0.5).device == 10.0


def test_what_cannot_shorten_the_mean_insures_the_shortest_prompts() -> None:
    # No answer was ever slower than the device. Two lengths of 5 tokens each on average; 9.9 are to be spent.
    lengths = LengthDistribution([10, 20, 40], [0.5, 0.25, 0.25])
    device = LinearTtft(0.0, 10.0)
    table = fit_optimal_waits(TWO_ANSWERS, lengths, device, 9.9 / lengths.mean)
    assert waits(table, lengths, 0.5).tolist() == [0.0, 1.0, NEVER]
    assert fit_optimal_waits(TWO_ANSWERS, lengths, device, 0.0).waits.tolist() == [NEVER] * 3


@given(TTFTS, DISTRIBUTIONS, DEVICES, SHARES)
def test_the_expected_spend_stays_within_the_budget(
    ttft: EmpiricalTtft, lengths: LengthDistribution, device: LinearTtft, budget: float
) -> None:
    table = fit_optimal_waits(ttft, lengths, device, budget)
    limit = budget * lengths.mean * (1 + 1e-9)
    assert device_spend(table, ttft, lengths) <= device_account(table, ttft, lengths) + 1e-9 <= limit + 2e-9


@given(TTFTS, DISTRIBUTIONS, DEVICES, SHARES, st.sampled_from([0.0, LAST]))
def test_longer_prompts_never_wait_less(
    ttft: EmpiricalTtft, lengths: LengthDistribution, device: LinearTtft, budget: float, u: float
) -> None:
    table = fit_optimal_waits(ttft, lengths, device, budget)
    found = [table.start(length, u).device for length in range(1, int(lengths.lengths[-1]) + 2)]
    assert found == sorted(found)


@given(TTFTS, DISTRIBUTIONS, DEVICES, SHARES)
@example(EmpiricalTtft([1.0, 1.0, 1.0, 2.0]), ONE_LENGTH, LinearTtft(0.0, 0.5), 0.4)
def test_no_mixture_of_waits_is_faster(
    ttft: EmpiricalTtft, lengths: LengthDistribution, device: LinearTtft, budget: float
) -> None:
    assume(lengths.lengths.size <= MOST_STRATA)
    table = fit_optimal_waits(ttft, lengths, device, budget)
    best = best_mean(ttft, lengths, device, budget)
    assert best - 1e-9 <= hedged_mean(table, ttft, lengths, device) <= best + FLAT * ttft.mean + 1e-9


@given(TTFTS, DISTRIBUTIONS, DEVICES, SHARES, SHARES)
def test_no_slower_on_average_than_the_papers_waits_at_the_same_cost(
    ttft: EmpiricalTtft, lengths: LengthDistribution, device: LinearTtft, budget: float, tail_share: float
) -> None:
    papers = fit_waits(ttft, lengths, budget, tail_share)
    cost = device_account(papers, ttft, lengths) / lengths.mean
    optimal = fit_optimal_waits(ttft, lengths, device, cost)
    papers_mean = hedged_mean(papers, ttft, lengths, device)
    assert hedged_mean(optimal, ttft, lengths, device) <= papers_mean + FLAT * ttft.mean + 1e-9


@pytest.mark.parametrize("budget", [0.03, 0.1, 0.3, 0.6])
@pytest.mark.parametrize(("spread", "shape"), [(0.7, None), (0.2, 1.5)])
def test_quantiles_and_strata_come_within_two_per_mille_of_the_optimum(
    budget: float, spread: float, shape: float | None
) -> None:
    rng = np.random.default_rng(1)
    samples = 0.6 * np.exp(spread * rng.standard_normal(4000)) + (0.0 if shape is None else rng.pareto(shape, 4000))
    prompts = np.maximum(1, np.exp(3.5 + rng.standard_normal(20_000))).astype(np.int64)
    exact, lengths, device = EmpiricalTtft(samples), LengthDistribution.of_samples(prompts), LinearTtft(0.02, 0.3)
    assert lengths.lengths.size > 4 * MOST_STRATA
    best = best_mean(exact, lengths, device, budget)
    for ttft in (exact, BucketedTtft(samples)):
        table = fit_optimal_waits(ttft, lengths, device, budget)
        assert device_spend(table, exact, lengths) <= budget * lengths.mean * (1 + 1e-9)
        assert best - 1e-9 <= hedged_mean(table, exact, lengths, device) <= best * 1.002


def best_mean(ttft: EmpiricalTtft, lengths: LengthDistribution, device: LinearTtft, budget: float) -> float:
    """By the book: the hull of every length, then all of its edges by gain per token until the budget is spent."""
    size = ttft.samples.size
    seconds = np.concatenate([ttft.samples[::-1], [0.0]])
    costs = np.concatenate([1 - np.arange(size, 0, -1) / (size + 1), [1.0]])
    edges = []
    for length, probability in zip(lengths.lengths.tolist(), lengths.probabilities.tolist(), strict=True):
        gains = ttft.mean_excess(seconds + device.predict(length))
        corner, cost, gain = -1, 0.0, 0.0
        while corner < size:
            slopes = (gains[corner + 1 :] - gain) / (costs[corner + 1 :] - cost)
            corner += 1 + int(slopes.size - 1 - slopes[::-1].argmax())
            tokens = probability * length * (costs[corner] - cost)
            edges.append((tokens, probability * (gains[corner] - gain)))
            cost, gain = costs[corner], gains[corner]
    edges.sort(key=lambda edge: -edge[1] / edge[0])
    left, mean = budget * lengths.mean, ttft.mean
    for tokens, gain in edges:
        part = min(1.0, left / tokens)
        left, mean = left - part * tokens, mean - part * gain
    return mean
