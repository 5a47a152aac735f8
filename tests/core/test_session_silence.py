"""A leg that is silent for longer than its endpoint ever is: somebody else gets a chance, and nobody is given up."""

from __future__ import annotations

import pytest

from serve_app.core.errors import EndpointTimeout
from serve_app.core.protocol import Phase
from serve_app.core.watch import Patience
from tests.support.session_stage import BREAK, CLOUD, LAPTOP, OVERLAP, PHONE, STOP, Stage, endpoint

#: A first token is late after 3 s, a further one after 1 s (and the slack of .5 s); both have failed at 30 and 5.5 s.
PATIENCE = Patience(3.0, 1.0)
ALL = (CLOUD, PHONE, LAPTOP)


def silent(*launches: str | tuple[str, float], **more: object) -> Stage:
    stage = Stage(*launches, patience=PATIENCE, **more)  # type: ignore[arg-type]
    stage.open()
    return stage


def speaking(**more: object) -> Stage:
    """The cloud has said "ab" at time 0."""
    stage = silent("cloud", **more)
    stage.accept("cloud")
    stage.say("cloud", "a", "b")
    return stage


# --- before the first token -----------------------------------------------------------------------------------------


def test_a_late_first_token_starts_the_pending_hedge_and_keeps_waiting() -> None:
    stage = silent("cloud", ("phone", 20.0))
    assert stage.session.wake_at == 3.0
    assert stage.wake(3.0) == [("start", "r-1-phone")]
    assert stage.say("cloud", "a")[0] == ("cancel", "r-1-phone")
    assert stage.session.winner is stage.leg("cloud"), "it was late, not dead"


def test_without_a_hedge_another_endpoint_is_tried_beside_it() -> None:
    stage = silent("cloud")
    assert stage.wake(3.0) == [("start", "r-1-phone")]
    stage.say("phone", "a")
    assert stage.outcomes == ["running", "running"], "the late cloud is heard out for what it teaches"
    stage.now = 29.0
    stage.say("phone", "b")
    assert stage.wake(30.0) == [("cancel", "r-0-cloud")]
    assert stage.leg("cloud").overdue


def test_somebody_who_is_still_in_time_is_waited_for() -> None:
    stage = silent("cloud", ("phone", 2.0), infos=ALL)
    stage.wake(2.0)
    assert stage.wake(3.0) == []
    assert stage.wake(5.0) == [("start", "r-2-laptop")], "now both are overdue"


@pytest.mark.parametrize("more", [{"infos": (CLOUD,)}, {"sick": ("phone",)}, {"max_rescues": 0}])
def test_where_nobody_else_could_serve_it_is_left_alone(more: dict[str, object]) -> None:
    stage = silent("cloud", **more)
    assert stage.wake(3.0) == []
    assert stage.session.wake_at == 30.0
    stage.say("cloud", "late but right", finish=STOP)
    assert stage.outcomes == ["completed"]


def test_a_failure_beside_one_that_is_overdue_starts_the_next() -> None:
    stage = silent("cloud", infos=ALL)
    stage.wake(3.0)
    assert stage.fail("phone") == [("start", "r-2-laptop")]
    assert stage.fail("laptop") == [], "nobody is left, and the cloud may still come"
    stage.say("cloud", "a", finish=STOP)
    assert stage.outcomes == ["completed", "failed", "failed"]


def test_a_pending_hedge_to_a_sick_endpoint_is_dropped_while_somebody_runs() -> None:
    stage = silent("cloud", ("phone", 1.0))
    stage.sick.add("phone")
    assert stage.wake(1.0) == []
    assert stage.fail("cloud") == [("start", "r-1-phone")], "better than nothing"


def test_a_retry_prefers_the_healthy() -> None:
    stage = silent("cloud", infos=ALL, sick=("phone",))
    assert stage.fail("cloud") == [("start", "r-1-laptop")]
    assert stage.fail("laptop") == [("start", "r-2-phone")]


# --- between tokens -------------------------------------------------------------------------------------------------


def test_a_silent_owner_gets_a_stand_in_and_is_out_when_that_speaks() -> None:
    stage = speaking()
    assert stage.session.wake_at == 1.5
    assert stage.wake(1.5) == [("start", "r-1-phone")]
    assert (stage.session.phase, stage.leg("cloud").live) == (Phase.HANDOFF, True)
    stage.now = 2.0
    assert stage.say("phone", "c") == [("cancel", "r-0-cloud"), ("emit", 2, 1, "c")]
    assert stage.outcomes == ["failed", "running"]
    assert isinstance(stage.leg("cloud").error, EndpointTimeout)
    (record,) = stage.session.migrations
    assert (record.reason.value, record.mode, record.outcome, record.at_token) == ("rescue", "overlap", "completed", 2)


def test_an_owner_that_speaks_again_goes_on_and_the_rescue_is_not_used_up() -> None:
    stage = speaking(max_rescues=1)
    stage.wake(1.5)
    stage.now = 2.0
    assert stage.say("cloud", "c") == [("cancel", "r-1-phone"), ("emit", 2, 1, "c")]
    assert stage.outcomes == ["running", "abandoned"]
    assert stage.wake(4.0) == [], "it is suspected once"
    assert stage.fail("cloud") == [("start", "r-2-phone")]


def test_a_suspicion_does_not_bar_planned_moves() -> None:
    stage = speaking(mode=OVERLAP)
    stage.wake(1.5)
    stage.say("cloud", *"cdefghijklmn")
    assert [record.reason.value for record in stage.session.migrations] == ["rescue", "migration"]


def test_an_owner_that_ends_during_the_suspicion_ends_the_stream() -> None:
    stage = speaking()
    stage.wake(1.5)
    assert stage.say("cloud", finish=STOP) == [("cancel", "r-1-phone"), ("close", STOP)]


def test_a_silent_owner_fails_at_the_configured_limit_and_its_stand_in_carries_on() -> None:
    stage = speaking()
    stage.wake(1.5)
    stage.now = 2.0
    assert stage.wake(5.5)[0] == ("cancel", "r-0-cloud")
    stage.say("phone", "c", finish=STOP)
    assert stage.text == "abc"


def test_a_stand_in_that_fails_leaves_the_stream_with_its_owner() -> None:
    stage = speaking()
    stage.wake(1.5)
    assert stage.fail("phone") == []
    assert stage.say("cloud", "c", finish=STOP) == [("emit", 2, 1, "c"), ("close", STOP)]


@pytest.mark.parametrize(
    "more",
    [{"infos": (CLOUD,)}, {"sick": ("phone",)}, {"max_rescues": 0}, {"infos": (CLOUD, endpoint("phone", context=11))}],
)
def test_a_silent_owner_without_a_stand_in_is_left_alone(more: dict[str, object]) -> None:
    stage = speaking(**more)
    assert stage.wake(1.5) == []
    assert stage.say("cloud", "c", finish=STOP) == [("emit", 2, 1, "c"), ("close", STOP)]


def test_half_a_character_waits_for_its_other_half() -> None:
    stage = silent("cloud")
    stage.say("cloud", "a", "", open_tokens=1)
    assert stage.wake(1.5) == []


def test_a_silent_target_that_nobody_stands_beside_makes_way() -> None:
    stage = speaking(infos=ALL)
    stage.fail("cloud")
    assert stage.wake(3.0) == [("cancel", "r-1-phone"), ("start", "r-2-laptop")]
    assert stage.outcomes == ["failed", "failed", "running"]


def test_the_last_target_is_waited_for() -> None:
    stage = speaking()
    stage.fail("cloud")
    assert stage.wake(3.0) == []
    stage.say("phone", "c", finish=STOP)
    assert stage.text == "abc"


def test_a_planned_target_has_its_source_beside_it_or_makes_way() -> None:
    stage = speaking(mode=OVERLAP)
    stage.say("cloud", *"cdefghij")
    assert stage.outcomes == ["running", "running"]
    assert stage.session.wake_at is not None
    stage.wake(3.0)
    assert stage.leg("phone").suspected_at is None
    broken = speaking(mode=BREAK)
    broken.say("cloud", *"cdefghij")
    broken.wake(3.0)
    assert broken.outcomes == ["handed_over", "failed", "running"]


def test_a_sick_endpoint_is_no_target_and_the_last_to_rescue() -> None:
    stage = speaking(mode=OVERLAP, sick=("phone",), infos=ALL)
    stage.say("cloud", *"cdefghij")
    assert {name: verdict.verdict.value for name, verdict in stage.session.verdicts.items()}["phone"] == "unhealthy"
    other = speaking(sick=("phone",), infos=ALL)
    assert other.fail("cloud") == [("start", "r-1-laptop")]
    last = speaking(sick=("phone",), infos=(CLOUD, PHONE), max_rescues=2)
    assert last.fail("cloud") == [("start", "r-1-cloud")]
    assert last.fail("cloud") == [("start", "r-2-phone")]


def test_the_error_names_the_first_cause_and_whatever_failed_after_it() -> None:
    stage = speaking(infos=ALL)
    stage.fail("cloud", EndpointTimeout("cloud: gone", "cloud"))
    stage.fail("phone")
    stage.fail("laptop")
    (close,) = stage.raw
    error = close.error  # type: ignore[union-attr]
    assert (type(error), error.endpoint) == (EndpointTimeout, "cloud")
    assert error.message == "cloud: gone; then failed: phone (endpoint_unavailable), laptop (endpoint_unavailable)"


def test_a_planned_target_that_fails_with_nobody_left_is_an_error_and_no_end() -> None:
    stage = speaking(mode=BREAK, max_rescues=0)
    stage.say("cloud", *"cdefghij")
    assert stage.fail("phone") == [("fail", "endpoint_unavailable")]


def test_an_owner_that_came_by_a_planned_move_is_to_blame_for_its_own_failure() -> None:
    stage = speaking(mode=OVERLAP, max_rescues=1)
    stage.say("cloud", *"cdefghij")
    stage.say("phone", "k")
    assert stage.session.owner == "phone"
    stage.fail("phone", EndpointTimeout("phone: gone", "phone"))
    stage.fail("cloud")
    (close,) = stage.raw
    assert isinstance(close.error, EndpointTimeout)  # type: ignore[union-attr]
