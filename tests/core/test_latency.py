from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.core.latency import EmpiricalTtft, LatencyProfile, LinearTtft

SAMPLES = [0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.5, 3.0, 8.0]
seconds = st.floats(0, 100, allow_nan=False)


@pytest.mark.parametrize(
    ("q", "expected"),
    [(-0.5, 0.2), (0.0, 0.2), (0.1, 0.2), (0.1001, 0.3), (0.325, 0.5), (0.7, 1.0), (0.9, 3.0), (0.95, 8.0), (1.0, 8.0)],
)
def test_quantile_is_the_smallest_sample_that_reaches_q(q: float, expected: float) -> None:
    assert EmpiricalTtft(SAMPLES).quantile(q) == expected


def test_rounding_of_q_does_not_skip_a_sample() -> None:
    assert EmpiricalTtft(SAMPLES).quantile(1 - 0.1 - 0.6) == 0.4
    assert 1 - 0.1 - 0.6 != 0.3


def test_the_distribution_is_right_continuous() -> None:
    ttft = EmpiricalTtft([3.0, 1.0, 1.0, 2.0])
    assert [ttft.cdf(x) for x in (0.99, 1.0, 1.5, 2.0, 3.0, 9.0)] == [0.0, 0.5, 0.5, 0.75, 1.0, 1.0]
    assert ttft.survival(1.0) == 0.5
    assert ttft.mean == 1.75


@settings(deadline=None)
@given(st.lists(seconds, min_size=1, max_size=60), st.floats(0, 1))
def test_quantile_inverts_the_distribution(samples: list[float], q: float) -> None:
    ttft = EmpiricalTtft(samples)
    x = ttft.quantile(q)
    assert x in samples
    assert ttft.cdf(x) >= q - 1e-9
    assert all(ttft.cdf(y) < q for y in samples if y < x)


@settings(deadline=None)
@given(st.lists(seconds, min_size=1, max_size=60), st.lists(seconds, min_size=1, max_size=20))
def test_means_and_chances_by_their_definitions(samples: list[float], points: list[float]) -> None:
    ttft = EmpiricalTtft(samples)
    excess = [np.mean([max(0.0, sample - x) for sample in samples]) for x in points]
    assert ttft.mean_excess(np.array(points)) == pytest.approx(excess, abs=1e-9)
    chances = [sum(sample <= x for sample in samples) / (ttft.size + 1) for x in points]
    assert ttft.answered(np.array(points)).tolist() == chances


def test_few_samples_are_all_worth_waiting_for() -> None:
    waits = EmpiricalTtft([3.0, 1.0, 2.0]).waits()
    assert waits.seconds.tolist() == [math.inf, 3.0, 2.0, 1.0, 0.0]
    assert waits.costs.tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]


@settings(deadline=None)
@given(st.lists(seconds, min_size=1, max_size=60), st.floats(0, 1), st.floats(0, 1))
def test_quantile_is_monotone(samples: list[float], p: float, q: float) -> None:
    ttft = EmpiricalTtft(samples)
    assert ttft.quantile(min(p, q)) <= ttft.quantile(max(p, q))


@pytest.mark.parametrize(("q", "expected"), [(0.0, 0.2), (0.09, 0.2), (0.1, 0.3), (0.9, 8.0)])
def test_the_next_answer_is_later_than_the_k_th_of_n_samples_in_one_case_of_n_plus_one(
    q: float, expected: float
) -> None:
    assert EmpiricalTtft(SAMPLES).within(q) == expected


def test_beyond_the_largest_sample_a_tail_goes_on_as_it_began() -> None:
    ranks = (np.arange(40) + 0.5) / 40
    light, heavy = EmpiricalTtft(1 + 0.1 * ranks), EmpiricalTtft((1 - ranks) ** -0.8)
    assert light.samples[-1] <= light.within(0.99) < 1.2
    assert heavy.within(0.99) == pytest.approx(0.01**-0.8, rel=0.35)
    assert heavy.within(0.999) > 4 * heavy.within(0.99)


@pytest.mark.parametrize("samples", [[0.7], [0.0, 0.0, 0.0], [0.0, 0.7], [0.4] * 12])
def test_a_tail_that_tells_nothing_ends_with_its_largest_sample(samples: list[float]) -> None:
    assert EmpiricalTtft(samples).within(0.99) == max(samples)


@settings(deadline=None)
@given(st.lists(seconds, min_size=1, max_size=60), st.floats(0, 0.999), st.floats(0, 0.999))
def test_a_surer_bound_is_not_shorter_and_never_below_the_quantile(samples: list[float], p: float, q: float) -> None:
    ttft = EmpiricalTtft(samples)
    assert ttft.within(min(p, q)) <= ttft.within(max(p, q))
    assert ttft.within(q) >= ttft.quantile(q)


@pytest.mark.parametrize("samples", [[], [[0.1], [0.2]], [0.1, math.nan], [math.inf], [-0.1, 0.2]])
def test_impossible_samples_are_refused(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="samples"):
        EmpiricalTtft(samples)


def test_tail_of_an_exponential_server() -> None:
    grid = -0.5 * np.log1p(-(np.arange(200_000) + 0.5) / 200_000)
    assert EmpiricalTtft(grid).quantile(1 - 0.05) == pytest.approx(1.4979, abs=1e-3)


def test_a_device_answers_linearly_in_the_prompt_and_a_server_does_not() -> None:
    device = LatencyProfile(LinearTtft(slope=0.01, intercept=0.4), prefill_rate=100.0, decode_rate=14.0)
    assert [device.expected_ttft(length) for length in (0, 60)] == [0.4, pytest.approx(1.0)]
    server = LatencyProfile(EmpiricalTtft(SAMPLES), prefill_rate=1e6, decode_rate=50.0)
    assert server.expected_ttft(10) == server.expected_ttft(4000) == pytest.approx(1.63)
