from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.core.lengths import LONGEST_COUNTED, LengthDistribution, OutputLengths, exponential_quantiles

prompts = st.lists(st.integers(1, 4000), min_size=1, max_size=80)
outputs = st.lists(st.integers(0, 2000), min_size=1, max_size=80)


def test_mean_of_a_given_distribution() -> None:
    assert LengthDistribution([10, 20, 40, 80], [0.4, 0.3, 0.2, 0.1]).mean == pytest.approx(26.0)


@settings(deadline=None)
@given(prompts)
def test_every_sample_counts_the_same(samples: list[int]) -> None:
    distribution = LengthDistribution.of_samples(samples)
    assert distribution.mean == pytest.approx(np.mean(samples))
    assert distribution.probabilities.sum() == pytest.approx(1.0)
    assert distribution.lengths.tolist() == sorted(set(samples))


def test_very_long_prompts_are_counted_too() -> None:
    distribution = LengthDistribution.of_samples([LONGEST_COUNTED + 1, 5, 5, 7])
    assert distribution.lengths.tolist() == [5, 7, LONGEST_COUNTED + 1]
    assert distribution.probabilities.tolist() == [0.5, 0.25, 0.25]


@pytest.mark.parametrize("samples", [[], [0, 5], [-3, 5]])
def test_impossible_samples_are_refused(samples: list[int]) -> None:
    with pytest.raises(ValueError, match="lengths"):
        LengthDistribution.of_samples(samples)


def test_few_lengths_are_strata_of_their_own() -> None:
    strata = LengthDistribution([10, 20, 40], [0.5, 0.0, 0.5]).strata(2)
    assert [column.tolist() for column in strata] == [[10, 40], [0.5, 0.5], [5.0, 20.0], [10.0, 40.0]]


@settings(deadline=None)
@given(prompts, st.integers(2, 12))
def test_strata_add_up_to_the_distribution(samples: list[int], most: int) -> None:
    distribution = LengthDistribution.of_samples(samples)
    longest, probabilities, tokens, mean = distribution.strata(most)
    assert longest.size <= most
    assert longest[-1] == max(samples)
    rows = np.searchsorted(longest, distribution.lengths)
    assert np.bincount(rows, distribution.probabilities) == pytest.approx(probabilities)
    assert np.bincount(rows, distribution.probabilities * distribution.lengths) == pytest.approx(tokens)
    assert mean * probabilities == pytest.approx(tokens)


@pytest.mark.parametrize(
    ("lengths", "probabilities", "named"),
    [
        ([], [], "lengths"),
        ([10, 20], [1.0], "lengths"),
        ([0, 20], [0.5, 0.5], "lengths"),
        ([20, 10], [0.5, 0.5], "lengths"),
        ([10, 10], [0.5, 0.5], "lengths"),
        ([10, 20], [1.5, -0.5], "probabilities"),
        ([10, 20], [0.5, math.nan], "probabilities"),
        ([10, 20], [0.5, 0.4], "probabilities"),
    ],
)
def test_impossible_distributions_are_refused(lengths: list[int], probabilities: list[float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        LengthDistribution(lengths, probabilities)


def test_a_single_token_and_a_length_that_never_occurs_are_fine() -> None:
    assert LengthDistribution([1, 20], [1.0, 0.0]).mean == 1.0


def test_mean_residual_life_by_hand() -> None:
    seen = OutputLengths([300, 100, 200])
    assert seen.expected_remaining(0, 1000) == 200.0
    assert seen.expected_remaining(99, 1000) == 101.0
    assert seen.expected_remaining(100, 1000) == 150.0
    assert seen.expected_remaining(250, 1000) == 50.0


def test_beyond_the_longest_answer_the_mean_is_still_to_come() -> None:
    assert OutputLengths([300, 100, 200]).expected_remaining(400, 1000) == 200.0


def test_the_cap_bounds_what_remains() -> None:
    seen = OutputLengths([300, 100, 200])
    assert seen.expected_remaining(100, 120) == 20.0
    assert seen.expected_remaining(120, 120) == 0.0


def test_remaining_needs_a_past() -> None:
    with pytest.raises(ValueError, match="samples"):
        OutputLengths([])


@settings(deadline=None)
@given(outputs, st.integers(0, 2500), st.integers(0, 2500))
def test_remaining_is_the_mean_of_the_longer_answers(samples: list[int], accepted: int, room: int) -> None:
    remaining = OutputLengths(samples).expected_remaining(accepted, accepted + room)
    assert 0 <= remaining <= room
    longer = [length - accepted for length in samples if length > accepted]
    if longer:
        assert remaining == pytest.approx(min(room, np.mean(longer)))


def test_guesses_are_the_middles_of_equal_shares() -> None:
    assert exponential_quantiles(200.0, 4) == [27, 94, 196, 416]
    assert exponential_quantiles(1.0, 3) == [1, 1, 2]
    assert exponential_quantiles(200.0, 0) == []


def test_the_guess_before_any_answer_is_memoryless() -> None:
    guess = exponential_quantiles(200.0, 2000)
    assert guess == sorted(guess)
    assert min(guess) >= 1
    seen = OutputLengths(guess)
    for accepted in (0, 50, 200, 400):
        assert seen.expected_remaining(accepted, 10_000) == pytest.approx(200, rel=0.03)
