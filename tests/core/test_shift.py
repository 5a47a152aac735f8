from __future__ import annotations

import numpy as np
import pytest

from serve_app.core.shift import ENOUGH_BEFORE, NEWEST, has_shifted

BEFORE = np.random.default_rng(5).lognormal(-1.0, 0.3, 200).tolist()
AFTER = np.random.default_rng(6).lognormal(1.0, 0.4, 200).tolist()


@pytest.mark.parametrize(("former", "latter"), [(BEFORE, AFTER), (AFTER, BEFORE)], ids=["slower", "faster"])
def test_ten_answers_of_another_service_tell(former: list[float], latter: list[float]) -> None:
    assert has_shifted(former + latter[:NEWEST])
    assert not has_shifted(former + latter[: NEWEST - 3])


def test_a_service_that_stays_the_same_is_not_suspected() -> None:
    rng = np.random.default_rng(7)
    answers = (
        0.6 * np.exp(0.5 * rng.standard_normal(20_000)) * np.where(rng.random(20_000) < 0.05, 10.0, 1.0)
    ).tolist()
    for end in range(100, len(answers), 3):
        assert not has_shifted(answers[max(0, end - 200) : end])


def test_too_little_was_seen_before() -> None:
    assert not has_shifted([])
    assert not has_shifted(BEFORE[: ENOUGH_BEFORE - 1] + AFTER[:NEWEST])
    assert has_shifted(BEFORE[:ENOUGH_BEFORE] + AFTER[:NEWEST])


def test_equal_answers_are_no_shift() -> None:
    assert not has_shifted([0.5] * 100)
