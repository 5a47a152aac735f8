from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.core.lengths import LengthDistribution
from serve_app.core.schedule import NEVER
from serve_app.core.threshold import LengthThreshold, fit_threshold
from tests.support.plans import DISTRIBUTIONS

LENGTHS = LengthDistribution([10, 20, 40, 80], [0.4, 0.3, 0.2, 0.1])


def uses_server(fit: LengthThreshold, prompt_tokens: int, u: float) -> bool:
    start = fit.start(prompt_tokens, u)
    assert start.device == 0
    assert start.server in (0, NEVER)
    return start.server == 0


def server_probability(fit: LengthThreshold, length: int) -> float:
    if length >= fit.threshold:
        return 1.0
    return fit.share if length >= fit.boundary else 0.0


def expected_spend(fit: LengthThreshold, lengths: LengthDistribution) -> float:
    """E[I_s(l) l]."""
    starts = np.array([server_probability(fit, int(length)) for length in lengths.lengths])
    return float((lengths.probabilities * lengths.lengths) @ starts)


@pytest.mark.parametrize(
    ("budget", "threshold", "boundary", "share"),
    [
        (0.4, 80, 40, 0.3),
        (0.2, math.inf, 80, 0.65),
        (0.7, 40, 20, 0.3667),
        (1.0, 10, 10, 0.0),
        (0.0, math.inf, 80, 0.0),
    ],
)
def test_worked_example(budget: float, threshold: float, boundary: int, share: float) -> None:
    fit = fit_threshold(LENGTHS, budget)
    assert (fit.threshold, fit.boundary) == (threshold, boundary)
    assert fit.share == pytest.approx(share, abs=5e-5)
    assert expected_spend(fit, LENGTHS) == pytest.approx(budget * LENGTHS.mean)


@pytest.mark.parametrize(("budget", "u"), [(0.1, 3.8897), (0.2, 2.9943), (0.3, 2.4392), (0.5, 1.6783), (0.8, 0.8244)])
def test_exponential_prompts(budget: float, u: float) -> None:
    mean = 2000
    lengths = np.arange(1, 40 * mean)
    p = np.exp(-lengths / mean)
    fit = fit_threshold(LengthDistribution(lengths, p / p.sum()), budget)
    assert fit.threshold / mean == pytest.approx(u, abs=2e-3)


def test_the_server_takes_part_from_the_threshold_on_and_by_chance_below() -> None:
    fit = fit_threshold(LENGTHS, 0.4)
    assert uses_server(fit, 80, 0.999)
    assert uses_server(fit, 5000, 0.999)
    assert uses_server(fit, 40, 0.299)
    assert not uses_server(fit, 40, 0.301)
    assert uses_server(fit, 60, 0.299)
    assert not uses_server(fit, 39, 0.0)


def test_without_a_budget_no_prompt_reaches_the_server() -> None:
    fit = fit_threshold(LENGTHS, 0.0)
    assert not any(uses_server(fit, length, 0.0) for length in (10, 80, 10**9))


@given(DISTRIBUTIONS, st.data(), st.sampled_from([1 - 5e-13, 1.0]))
def test_a_budget_that_just_pays_for_the_longest_prompts(
    lengths: LengthDistribution, data: st.DataObject, rounded: float
) -> None:
    paid = data.draw(st.integers(1, lengths.lengths.size))
    longest = float((lengths.lengths * lengths.probabilities)[-paid:].sum())
    fit = fit_threshold(lengths, longest / lengths.mean * rounded)
    assert fit.threshold == lengths.lengths[-paid]
    assert 0 <= fit.share <= 1e-9


@given(DISTRIBUTIONS, st.floats(0, 1))
def test_the_expected_spend_is_the_budget(lengths: LengthDistribution, budget: float) -> None:
    fit = fit_threshold(lengths, budget)
    assert 0 <= fit.share <= 1
    assert expected_spend(fit, lengths) == pytest.approx(budget * lengths.mean, rel=1e-6, abs=1e-6)


@given(DISTRIBUTIONS, st.floats(0, 1), st.floats(0, 1, exclude_max=True), st.tuples(*[st.integers(1, 3000)] * 2))
def test_longer_prompts_are_preferred(
    lengths: LengthDistribution, budget: float, u: float, pair: tuple[int, int]
) -> None:
    fit = fit_threshold(lengths, budget)
    shorter, longer = sorted(pair)
    assert uses_server(fit, longer, u) or not uses_server(fit, shorter, u)


@given(DISTRIBUTIONS, st.integers(0, 2**32 - 1))
def test_what_is_drawn_agrees_with_the_share(lengths: LengthDistribution, seed: int) -> None:
    fit = fit_threshold(lengths, 0.5)
    draws = np.random.default_rng(seed).random(200)
    for length in lengths.lengths.tolist():
        used = sum(uses_server(fit, length, float(u)) for u in draws)
        assert used == sum(u < server_probability(fit, length) for u in draws)
