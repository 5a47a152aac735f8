from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.pacing import ReaderClock, clock_for
from serve_app.core.model import Pace

paces = st.builds(
    Pace,
    rate=st.floats(0.5, 200),
    ahead_limit=st.integers(1, 2000),
    slack=st.floats(0.01, 5),
    hold=st.booleans(),
    lead=st.floats(0, 500),
)
origins = st.floats(0, 1e6)
elapsed = st.floats(0, 3600)
counts = st.integers(0, 100_000)


def read_by(pace: Pace, seconds: float) -> float:
    """The reader of the paper, written independently: tokens of this leg read, minus those still unread before it."""
    steps = math.floor(seconds * pace.rate + 1e-6)
    return steps - pace.lead if pace.lead > 0 else 1 + steps


@given(paces, origins, elapsed, counts)
def test_allowance_never_exceeds_the_limit_ahead_of_the_reader(
    pace: Pace, origin: float, seconds: float, produced: int
) -> None:
    now = origin + seconds
    more = ReaderClock(pace, origin).allowance(produced, now)
    assert more >= 0
    if more:
        assert produced + more - read_by(pace, now - origin) <= pace.ahead_limit + 1e-3


@given(paces, origins, counts, st.integers(1, 64))
def test_the_allowance_is_there_when_it_was_promised_and_not_much_sooner(
    pace: Pace, origin: float, produced: int, wanted: int
) -> None:
    clock = ReaderClock(pace, origin)
    opens = clock.opens_at(produced, wanted)
    assert opens is not None
    assert clock.allowance(produced, opens) >= wanted
    if opens > origin:
        sooner = opens - 1.01 / pace.rate
        assert clock.allowance(produced, sooner) < wanted


@given(paces, origins, elapsed, counts, st.integers(0, 50))
def test_allowance_only_shrinks_by_producing(
    pace: Pace, origin: float, seconds: float, produced: int, more: int
) -> None:
    clock = ReaderClock(pace, origin)
    now = origin + seconds
    assert clock.allowance(produced, now) >= clock.allowance(produced + more, now)
    assert clock.allowance(produced, now + 1) >= clock.allowance(produced, now)


@given(paces, origins, counts)
def test_a_held_token_leaves_a_slack_before_the_reader_needs_it(pace: Pace, origin: float, token: int) -> None:
    leave_by = ReaderClock(pace, origin).leave_by(token)
    if not pace.hold:
        assert leave_by is None
        return
    assert leave_by is not None
    seconds = leave_by + pace.slack - origin
    assert read_by(pace, seconds - 1.01 / pace.rate) <= token + 1e-3, "due no later than it is read"
    assert ReaderClock(pace, origin).leave_by(token + 1) == pytest.approx(leave_by + 1 / pace.rate)


@given(st.integers(1, 2000), counts, elapsed)
def test_without_a_rate_the_allowance_is_used_up_once(limit: int, produced: int, now: float) -> None:
    clock = ReaderClock(Pace(rate=None, ahead_limit=limit, hold=True), 0.0)
    assert clock.allowance(produced, now) == max(0, limit - produced)
    assert clock.opens_at(produced) is None
    assert clock.leave_by(produced) is None


def test_a_first_leg_reads_its_first_token_at_once() -> None:
    clock = ReaderClock(Pace(rate=5.0, ahead_limit=10), 100.0)
    assert clock.allowance(1, 100.0) == 10
    assert clock.allowance(11, 100.19) == 0
    assert clock.allowance(11, 100.2) == 1
    assert clock.opens_at(11) == pytest.approx(100.2)


def test_a_handed_over_lead_counts_as_ahead() -> None:
    clock = ReaderClock(Pace(rate=5.0, ahead_limit=10, lead=8.0, hold=True, slack=0.5), 100.0)
    assert clock.allowance(0, 100.0) == 2
    assert clock.opens_at(2) == pytest.approx(100.2)
    assert clock.leave_by(0) == pytest.approx(101.1)


def test_the_clock_starts_with_the_first_token_unless_a_lead_was_handed_over() -> None:
    assert clock_for(Pace(rate=5.0), 3.0, None) is None
    assert clock_for(Pace(rate=5.0), 3.0, 4.0) == ReaderClock(Pace(rate=5.0), 4.0)
    assert clock_for(Pace(rate=5.0, lead=2.0), 3.0, 4.0) == ReaderClock(Pace(rate=5.0, lead=2.0), 3.0)
