from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from serve_app.core.ticks import tick_before

instants = st.floats(0.0, 1e6)
slacks = st.floats(0.01, 10.0)


@given(instants, slacks)
def test_a_tick_is_never_late_and_less_than_a_quarter_of_a_slack_early(instant: float, slack: float) -> None:
    tick = tick_before(instant, slack)
    assert tick <= instant
    assert instant - tick <= slack / 4 * (1 + 1e-6)


@given(st.integers(0, 10**6), slacks, st.integers(1, 20))
def test_whole_slacks_lead_from_tick_to_tick(number: int, slack: float, slacks_later: int) -> None:
    tick = tick_before(number * slack / 4, slack)
    later = tick_before(tick + slacks_later * slack, slack)
    assert abs(later - tick - slacks_later * slack) <= 1e-6 * slack


def test_streams_that_started_apart_meet() -> None:
    assert {tick_before(100.0 + offset, 1.0) for offset in (0.0, 0.03, 0.06, 0.249)} == {100.0}
