from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.core.breaker import Breaker, BreakerConfig, Breakers, BreakerState, Health, health_of
from serve_app.core.errors import EndpointFault, EndpointTimeout, EndpointUnavailable, InvalidRequest, Overloaded
from serve_app.core.legs import Leg, LegOutcome, LegReason
from tests.support.session_stage import CLOUD

CONFIG = BreakerConfig(faults=5, memory=60.0, shortest=1.0, longest=8.0, lease=10.0)
FINE, FAULT, UNKNOWN = Health.FINE, Health.FAULT, Health.UNKNOWN


class Endpoint:
    """A breaker, and legs that end as they are told."""

    def __init__(self) -> None:
        self.breaker = Breaker(CONFIG)
        self._numbers = count()

    def leg(self, health: Health, start: float, end: float | None = None) -> None:
        attempt = f"r-{next(self._numbers)}"
        self.breaker.started(attempt, start)
        self.breaker.ended(attempt, health, start, start if end is None else end)

    def broken(self) -> Endpoint:
        for _ in range(5):
            self.leg(FAULT, 0.0)
        return self

    @property
    def state(self) -> BreakerState:
        return self.breaker.state


def test_faults_open_it_and_a_good_probe_closes_it() -> None:
    one = Endpoint().broken()
    assert (one.state, one.breaker.takes(0.9), one.breaker.takes(1.0)) == (BreakerState.OPEN, False, True)
    one.breaker.started("probe", 1.0)
    assert (one.state, one.breaker.takes(1.5)) == (BreakerState.HALF_OPEN, False)
    one.breaker.ended("probe", FINE, 1.0, 2.0)
    assert (one.state, one.breaker.takes(2.0)) == (BreakerState.CLOSED, True)


def test_half_of_the_answers_bad_is_too_many_and_fewer_is_not() -> None:
    one = Endpoint()
    for rank in range(9):
        one.leg(FAULT if rank % 2 == 0 else FINE, float(rank))
    assert one.state is BreakerState.OPEN
    other = Endpoint()
    for rank in range(90):
        other.leg(FAULT if rank % 3 == 0 else FINE, float(rank) / 10)
    assert other.state is BreakerState.CLOSED


def test_old_faults_are_forgotten() -> None:
    one = Endpoint()
    for rank in range(20):
        one.leg(FAULT, 20.0 * rank)
    assert one.state is BreakerState.CLOSED


def test_each_failed_probe_doubles_the_pause_up_to_the_longest() -> None:
    one = Endpoint().broken()
    pauses = []
    for _ in range(5):
        at = one.breaker.retry_at
        one.leg(FAULT, at)
        pauses.append(one.breaker.retry_at - at)
    assert pauses == [2.0, 4.0, 8.0, 8.0, 8.0]
    one.leg(FINE, one.breaker.retry_at)
    assert one.broken().breaker.retry_at == 1.0, "the next time it begins with the shortest"


def test_a_probe_that_says_nothing_makes_room_at_once_and_one_that_hangs_after_its_lease() -> None:
    one = Endpoint().broken()
    one.leg(UNKNOWN, 1.0, 1.2)
    assert one.breaker.takes(1.2)
    one.breaker.started("hangs", 2.0)
    assert (one.breaker.takes(11.9), one.breaker.takes(12.0)) == (False, True)
    one.breaker.started("next", 12.0)
    one.breaker.ended("hangs", FAULT, 2.0, 13.0)
    assert one.state is BreakerState.HALF_OPEN, "its time was over; the next one decides"
    one.breaker.ended("next", FINE, 12.0, 14.0)
    assert one.state is BreakerState.CLOSED


def test_legs_from_before_it_opened_decide_nothing() -> None:
    one = Endpoint()
    one.breaker.started("long", 0.0)
    for rank in range(5):
        one.leg(FAULT, 1.0 + rank)
    one.breaker.ended("long", FINE, 0.0, 5.5)
    assert one.state is BreakerState.OPEN


def test_what_fails_while_it_is_open_does_not_prolong_it_and_what_succeeds_closes_it() -> None:
    one = Endpoint().broken()
    one.leg(FAULT, 0.5)
    assert one.breaker.retry_at == 1.0
    one.leg(FINE, 0.6)
    assert one.state is BreakerState.CLOSED


def test_nothing_said_changes_nothing() -> None:
    one = Endpoint()
    for _ in range(100):
        one.leg(UNKNOWN, 0.0)
    assert one.state is BreakerState.CLOSED


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["start", "end", "end", "time"]),
            st.sampled_from([FINE, FAULT, FAULT, UNKNOWN]),
            st.floats(0.0, 15.0),
            st.integers(0, 5),
        ),
        max_size=80,
    )
)
def test_it_is_never_stuck(moves: list[tuple[str, Health, float, int]]) -> None:
    """Whatever happened, it takes a leg again after its longest pause and one lease; a good one then closes it."""
    breaker, now, names = Breaker(CONFIG), 0.0, count()
    running: list[tuple[str, float]] = []
    for what, health, seconds, which in moves:
        if what == "start":
            running.append((f"r-{next(names)}", now))
            breaker.started(running[-1][0], now)
        elif what == "end" and running:
            attempt, started = running.pop(which % len(running))
            breaker.ended(attempt, health, started, now)
        else:
            now += seconds
        assert breaker.retry_at <= now + CONFIG.longest + CONFIG.lease
    now += CONFIG.longest + CONFIG.lease
    assert breaker.takes(now)
    breaker.started("last", now)
    breaker.ended("last", FINE, now, now)
    assert breaker.state is BreakerState.CLOSED


def test_requests_start_at_healthy_endpoints_or_at_the_one_that_is_due_first() -> None:
    breakers = Breakers(CONFIG)
    for name, at in (("a", 3.0), ("b", 1.0)):
        for rank in range(5):
            breakers[name].ended(f"{name}-{rank}", FAULT, at, at)
    assert breakers.healthy(["a", "b", "c"], 3.0) == ("b", "c")
    assert breakers.healthy(["a", "b"], 1.5) == ("b",)
    assert breakers.healthy(["a"], 3.5) == ("a",)
    assert breakers.is_sick("a", 3.5)
    assert not breakers.is_sick("c", 3.5)


def test_other_limits_take_effect_and_states_stay() -> None:
    breakers = Breakers()
    for rank in range(5):
        breakers["a"].ended(f"{rank}", FAULT, 0.0, 0.0)
    breakers.reconfigure(BreakerConfig(faults=1))
    assert breakers["a"].state is BreakerState.OPEN
    breakers["b"].ended("b", FAULT, 0.0, 0.0)
    assert breakers["b"].state is BreakerState.OPEN


@pytest.mark.parametrize(
    ("outcome", "more", "health"),
    [
        (LegOutcome.COMPLETED, {"first_token": 1.0}, FINE),
        (LegOutcome.HANDED_OVER, {"first_token": 1.0}, FINE),
        (LegOutcome.LOST, {"first_token": 1.0}, FINE),
        (LegOutcome.EMPTY, {}, FINE),
        (LegOutcome.LOST, {}, UNKNOWN),
        (LegOutcome.CANCELLED, {"first_token": 1.0}, UNKNOWN),
        (LegOutcome.ABANDONED, {}, UNKNOWN),
        (LegOutcome.PARKED, {}, UNKNOWN),
        (LegOutcome.FAILED, {"error": EndpointUnavailable("gone")}, FAULT),
        (LegOutcome.FAILED, {"error": EndpointTimeout("late")}, FAULT),
        (LegOutcome.FAILED, {"error": EndpointFault("nonsense"), "first_token": 1.0}, FAULT),
        (LegOutcome.FAILED, {"error": InvalidRequest("no")}, UNKNOWN),
        (LegOutcome.FAILED, {"error": Overloaded("full")}, UNKNOWN),
        (LegOutcome.LOST, {"suspected_at": 3.0}, FAULT),
        (LegOutcome.COMPLETED, {"suspected_at": 3.0, "last_item": 4.0, "first_token": 1.0}, FINE),
    ],
)
def test_only_an_endpoints_own_faults_count(outcome: LegOutcome, more: dict[str, Any], health: Health) -> None:
    leg = Leg("r-0-cloud", CLOUD, LegReason.DISPATCH, 0.0, **more)
    leg.end(outcome, 5.0)
    assert health_of(leg) is health
