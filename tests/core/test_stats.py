from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.core.stats import delay_num, gaps, perceived_tbts, percentile, qoe, shown_times

rates = st.floats(0.5, 200)
arrivals = st.lists(st.floats(0, 2), min_size=1, max_size=80).map(lambda steps: np.cumsum(steps).tolist())


def test_a_fast_stream_is_read_at_the_readers_rate() -> None:
    assert shown_times([1.0, 1.01, 1.02, 1.03], 5.0) == pytest.approx([1.0, 1.2, 1.4, 1.6])


def test_after_a_stall_the_reader_catches_up() -> None:
    shown = shown_times([0.0, 0.1, 1.0, 1.01, 1.02, 1.03, 1.04], 5.0)
    assert shown == pytest.approx([0.0, 0.2, 1.0, 1.01, 1.02, 1.03, 1.2])
    assert perceived_tbts([0.0, 0.1, 1.0, 1.01, 1.02, 1.03, 1.04], 5.0) == pytest.approx(gaps(shown))


@pytest.mark.parametrize("times", [[], [1.0]])
def test_fewer_than_two_tokens_have_no_gap(times: list[float]) -> None:
    assert gaps(times) == []


def test_delayed_tokens_are_those_the_reader_waits_for() -> None:
    times = [0.0, 0.2, 0.9, 0.91, 0.92, 0.93]
    assert delay_num(times, 5.0, after=0) == 3
    assert delay_num(times, 5.0, after=3) == 2
    assert delay_num(times, 5.0, after=5) == 0
    assert delay_num([], 5.0, after=0) == 0


def test_a_stall_beyond_the_buffer_delays_about_as_many_tokens_as_the_closed_form() -> None:
    reader, source, beyond = 4.8, 14.0, 0.5
    before = [i / source for i in range(40)]
    stall_ends = before[0] + len(before) / reader + beyond
    after = [stall_ends + i / source for i in range(60)]
    expected = beyond * reader * source / (source - reader)
    assert expected == pytest.approx(3.65, abs=0.01)
    assert abs(delay_num(before + after, reader, after=len(before)) - expected) <= 1


@pytest.mark.parametrize(("q", "expected"), [(0.0, 1.0), (0.2, 1.0), (0.21, 2.0), (0.5, 3.0), (0.99, 5.0), (1.0, 5.0)])
def test_percentile_is_one_of_the_values(q: float, expected: float) -> None:
    assert percentile([5.0, 1.0, 4.0, 2.0, 3.0], q) == expected


def test_rounding_of_a_share_does_not_skip_a_value() -> None:
    assert percentile([float(i) for i in range(1, 11)], 0.1 + 0.2) == 3.0
    assert 0.1 + 0.2 > 0.3


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=80), st.floats(0, 1))
def test_percentile_covers_its_share(values: list[float], q: float) -> None:
    x = percentile(values, q)
    assert sum(value <= x for value in values) >= q * len(values) - 1e-6
    assert sum(value < x for value in values) <= math.ceil(q * len(values))


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([2.0, 2.1, 2.2, 2.3, 2.4], 0.5833),
        ([1.0, 1.2, 1.4, 2.4, 2.6], 0.8140),
        ([0.5, 0.6, 0.7, 0.8, 0.9], 1.0),
    ],
)
def test_andes_quality_of_experience(times: list[float], expected: float) -> None:
    assert qoe(times, 5.0, expected_ttft=1.0) == pytest.approx(expected, abs=5e-5)


@settings(deadline=None)
@given(arrivals, rates)
def test_nothing_is_shown_before_it_arrives_or_before_it_can_be_read(times: list[float], rate: float) -> None:
    shown = shown_times(times, rate)
    assert shown == sorted(shown)
    assert all(s >= a for s, a in zip(shown, times, strict=True))
    assert all(s >= times[0] + i / rate - 1e-9 for i, s in enumerate(shown))
    assert math.fsum(perceived_tbts(times, rate)) == pytest.approx(shown[-1] - shown[0], abs=1e-6)


@settings(deadline=None)
@given(arrivals, rates, st.floats(0.1, 5))
def test_quality_lies_between_nothing_and_perfect(times: list[float], rate: float, expected: float) -> None:
    value = qoe(times, rate, expected)
    assert 0 < value <= 1
    on_time = [expected + i / rate for i in range(len(times))]
    assert qoe(on_time, rate, expected) == pytest.approx(1.0)


@settings(deadline=None)
@given(arrivals, rates, st.floats(0.1, 5), st.floats(0, 5))
def test_later_is_never_better(times: list[float], rate: float, expected: float, delay: float) -> None:
    assert qoe([t + delay for t in times], rate, expected) <= qoe(times, rate, expected) + 1e-9
