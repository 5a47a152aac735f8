from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from serve_app.core.buckets import BucketedTtft
from serve_app.core.latency import MOST_WAITS, EmpiricalTtft

#: No bucket is wider than this, relative to its values.
WIDTH = 1 / 128

samples = st.lists(st.one_of(st.floats(0, 1e-3), st.floats(0.01, 100), st.floats(0, 1e9)), min_size=1, max_size=60)
points = st.lists(st.floats(0, 200), min_size=1, max_size=20).map(np.array)


@given(samples, st.floats(-0.1, 1.1))
@example([0.0], 0.5)
@example([0.0, 2.0**-10], 0.6)
@example([-0.0, 0.5], 0.6)
def test_quantiles_are_those_of_sorted_samples(given_samples: list[float], q: float) -> None:
    assert BucketedTtft(given_samples).quantile(q) == EmpiricalTtft(given_samples).quantile(q)


def test_many_samples_in_any_order() -> None:
    rng = np.random.default_rng(3)
    many = np.exp(rng.standard_normal(50_000))
    bucketed, exact = BucketedTtft(many), EmpiricalTtft(many)
    assert bucketed.size == exact.size == 50_000
    for q in rng.random(200).tolist():
        assert bucketed.quantile(q) == exact.quantile(q)
    x = np.linspace(0, 20, 500)
    assert bucketed.mean_excess(x) == pytest.approx(exact.mean_excess(x), rel=1e-3, abs=1e-5)


@given(samples, points)
def test_means_are_off_by_less_than_a_bucket(given_samples: list[float], x: np.ndarray) -> None:
    bucketed, exact = BucketedTtft(given_samples), EmpiricalTtft(given_samples)
    error = WIDTH * max(given_samples) + 2.0**-10
    assert bucketed.mean_excess(x) == pytest.approx(exact.mean_excess(x), abs=error)
    assert (bucketed.mean_excess(x + max(given_samples) * (1 + WIDTH) + 0.001) == 0).all()
    assert (np.diff(bucketed.mean_excess(np.sort(x))) <= 1e-9 * max(given_samples)).all()


@given(samples, points)
def test_what_has_answered_is_never_overestimated(given_samples: list[float], x: np.ndarray) -> None:
    bucketed, exact = BucketedTtft(given_samples), EmpiricalTtft(given_samples)
    assert (bucketed.answered(x) <= exact.answered(x)).all()
    assert (bucketed.answered(x * (1 + 2 * WIDTH) + 2.0**-9) >= exact.answered(x)).all()


@pytest.mark.parametrize("kind", [BucketedTtft, EmpiricalTtft])
@pytest.mark.parametrize("size", [1, 5, MOST_WAITS - 2, MOST_WAITS - 1, 5000])
def test_waits_descend_from_never_to_a_race_and_cost_no_less_than_they_must(
    kind: type[BucketedTtft | EmpiricalTtft], size: int
) -> None:
    drawn = np.exp(np.random.default_rng(size).standard_normal(size))
    seconds, costs = kind(drawn).waits()
    assert costs.size == seconds.size <= MOST_WAITS
    assert (seconds[0], costs[0], seconds[-1], costs[-1]) == (math.inf, 0.0, 0.0, 1.0)
    assert (np.diff(seconds) < 0).all()
    assert (np.diff(costs) > 0).all()
    assert seconds[1] >= drawn.max()
    longer = (drawn > seconds[1:-1, None]).sum(axis=1)
    assert (costs[1:-1] >= (longer + 1) / (size + 1) - 1e-12).all()
    assert size < 5000 or seconds.size > 200


@pytest.mark.parametrize("kind", [BucketedTtft, EmpiricalTtft])
def test_nobody_waits_into_a_gap(kind: type[BucketedTtft | EmpiricalTtft]) -> None:
    seconds, costs = kind(np.concatenate([np.linspace(0.5, 1.0, 900), np.linspace(9.0, 10.0, 100)])).waits()
    assert not ((seconds > 1.0 + WIDTH) & (seconds < 9.0)).any()
    last_of_the_fast = int(np.argmax(seconds < 9.0))
    assert costs[last_of_the_fast] == pytest.approx(101 / 1001)


@pytest.mark.parametrize("kind", [BucketedTtft, EmpiricalTtft])
def test_many_equal_samples_leave_one_wait(kind: type[BucketedTtft | EmpiricalTtft]) -> None:
    for value in (0.0, 0.5):
        seconds, _ = kind([value] * 1000).waits()
        assert seconds[1:-1] == pytest.approx(value, rel=WIDTH, abs=2.0**-9)


@pytest.mark.parametrize("impossible", [[], [[0.1], [0.2]], [0.1, math.nan], [-math.nan], [math.inf], [-0.1, 0.2]])
def test_impossible_samples_are_refused(impossible: list[float]) -> None:
    with pytest.raises(ValueError, match="samples"):
        BucketedTtft(impossible)
