from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.core.turns import LONGEST, SHORTEST, seconds_until_free

seconds = st.floats(0, 1e5)


@pytest.mark.parametrize(
    ("ages", "held", "turn", "expected"),
    [
        ([], [], 1, SHORTEST),
        ([0.0], [], 1, SHORTEST),
        ([15.0], [20.0, 20.0, 20.0], 1, 5.0),
        ([5.0, 15.0], [20.0], 1, 5.0),
        ([5.0, 15.0], [20.0], 2, 15.0),
        ([5.0, 15.0], [20.0], 3, 25.0),
        ([0.0], [10.0, 30.0, 50.0], 1, 30.0),
        ([20.0], [10.0, 30.0, 50.0], 1, 30.0),
        ([25.0], [20.0], 1, 25.0),
        ([19.9], [20.0], 1, SHORTEST),
        ([0.0], [1e6], 1, LONGEST),
    ],
)
def test_the_remaining_time_counts(ages: list[float], held: list[float], turn: int, expected: float) -> None:
    assert seconds_until_free(ages, held, turn) == pytest.approx(expected)


def test_one_long_stream_is_soon_forgotten() -> None:
    assert seconds_until_free([0.0], [600.0, 2.0, 2.0]) == 2.0


@given(st.lists(seconds, max_size=30), st.lists(seconds, max_size=20), st.integers(1, 100))
def test_a_later_turn_never_comes_sooner_and_all_are_bounded(ages: list[float], held: list[float], turn: int) -> None:
    first, later = (seconds_until_free(ages, held, n) for n in (turn, turn + 1))
    assert SHORTEST <= first <= later <= LONGEST
