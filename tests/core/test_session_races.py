"""PREFILL: plain dispatch, races, hedges, and what happens to those who lose or fail."""

from __future__ import annotations

import pytest

from serve_app.core.errors import (
    DiscoError,
    EndpointFault,
    EndpointTimeout,
    EndpointUnavailable,
    InvalidRequest,
    Overloaded,
    PromptTooLong,
    Unsupported,
)
from serve_app.core.legs import LegReason
from serve_app.core.protocol import Phase
from tests.support.session_stage import BREAK, CLOUD, LAPTOP, LENGTH, OVERLAP, PAUSED, PHONE, STOP, Stage, endpoint

PARKING_PHONE = endpoint("phone", parks=True)
ALL = (CLOUD, PHONE, LAPTOP)


def test_plain_dispatch_starts_one_endpoint() -> None:
    stage = Stage("cloud")
    assert stage.open() == [("start", "r-0-cloud")]
    assert stage.say("cloud", "a") == [("emit", 0, 1, "a")]
    assert stage.session.phase is Phase.DECODE
    assert stage.session.owner == "cloud"


def test_a_race_starts_both_at_once_and_the_first_token_wins() -> None:
    stage = Stage("cloud", "phone")
    assert stage.open() == [("start", "r-0-cloud"), ("start", "r-1-phone")]
    assert stage.say("cloud", "a") == [("cancel", "r-1-phone"), ("emit", 0, 1, "a")]
    assert stage.outcomes == ["running", "lost"]


@pytest.mark.parametrize("sign", ["receipt", "empty chunk"])
def test_only_content_wins(sign: str) -> None:
    stage = Stage("cloud", "phone")
    stage.open()
    assert (stage.accept("cloud") if sign == "receipt" else stage.say("cloud")) == []
    stage.say("phone", "a")
    assert stage.session.owner == "phone"


def test_a_token_that_ends_inside_a_character_is_content() -> None:
    stage = Stage("cloud", "phone")
    stage.open()
    assert stage.say("cloud", "", open_tokens=1) == [("cancel", "r-1-phone")]
    assert stage.say("cloud", "é") == [("emit", 0, 2, "é")]


def test_a_hedge_fires_when_its_wait_is_over() -> None:
    stage = Stage("cloud", ("phone", 0.5))
    assert stage.open() == [("start", "r-0-cloud")]
    assert stage.session.wake_at == 0.5
    assert stage.wake(0.4) == []
    assert stage.wake(0.5) == [("start", "r-1-phone")]
    assert stage.wake(0.5) == []
    assert [leg.reason for leg in stage.session.legs] == [LegReason.DISPATCH, LegReason.HEDGE]


def test_a_hedge_is_not_needed_when_the_first_token_was_faster() -> None:
    stage = Stage("cloud", ("phone", 0.5))
    stage.open()
    stage.say("cloud", "a")
    assert stage.wake(0.5) == []
    assert stage.outcomes == ["running"]


def test_a_pending_hedge_starts_at_once_when_nobody_runs_any_more() -> None:
    stage = Stage("cloud", ("phone", 0.5))
    stage.open()
    stage.now = 0.01
    assert stage.fail("cloud") == [("start", "r-1-phone")]
    assert stage.wake(0.5) == [], "not a second time"
    assert stage.say("phone", "a") == [("emit", 0, 1, "a")]


def test_a_failure_beside_a_running_leg_waits_for_it() -> None:
    stage = Stage("cloud", "phone", ("laptop", 2.0), infos=ALL)
    stage.open()
    assert stage.fail("cloud") == []
    assert stage.session.wake_at == 2.0
    assert stage.say("phone", "a") == [("emit", 0, 1, "a")]


def test_launches_need_not_be_sorted() -> None:
    stage = Stage(("cloud", 0.5), "phone")
    assert stage.open() == [("start", "r-0-phone")]
    assert stage.wake(0.5) == [("start", "r-1-cloud")]


# --- losers ---------------------------------------------------------------------------------------------------------


def test_a_cloud_loser_runs_to_its_first_token() -> None:
    stage = Stage("cloud", "phone")
    stage.open()
    stage.now = 0.2
    assert stage.say("phone", "a") == [("emit", 0, 1, "a")]
    assert stage.accept("cloud") == []
    assert stage.say("cloud") == []
    stage.now = 3.0
    assert stage.say("cloud", "x", "y") == [("cancel", "r-0-cloud")]
    assert stage.outcomes == ["lost", "running"]
    assert (stage.leg("cloud").ttft, stage.leg("cloud").tokens, stage.leg("cloud").used) == (3.0, 2, 0)
    assert stage.text == "a"


def test_a_cloud_loser_that_ends_is_done_with() -> None:
    stage = Stage("cloud", "phone")
    stage.open()
    stage.say("phone", "a")
    assert stage.say("cloud", finish=STOP) == [("cancel", "r-0-cloud")]
    assert stage.outcomes == ["lost", "running"]


def test_a_cloud_loser_that_fails_does_not_touch_the_stream() -> None:
    stage = Stage("cloud", "phone", max_rescues=0)
    stage.open()
    stage.say("phone", "a")
    assert stage.fail("cloud", Overloaded("full")) == []
    assert stage.outcomes == ["failed", "running"]
    assert stage.fail("phone") == [("fail", "endpoint_unavailable")], "its error is not the stream's first cause"


def test_a_cloud_loser_is_cancelled_with_the_stream() -> None:
    stage = Stage("cloud", "phone")
    stage.open()
    stage.say("phone", "a")
    assert stage.say("phone", finish=STOP) == [("cancel", "r-0-cloud"), ("close", STOP)]
    assert stage.outcomes == ["lost", "completed"]


def test_a_cloud_loser_without_a_first_token_times_out_alone() -> None:
    stage = Stage("cloud", "phone", first_token_timeout=2.0)
    stage.open()
    stage.say("phone", "a")
    stage.now = 1.9
    stage.say("phone", "b")
    assert stage.wake(2.0) == [("cancel", "r-0-cloud")]
    assert stage.session.owner == "phone"


# --- parking --------------------------------------------------------------------------------------------------------


def test_the_planned_target_parks_when_it_loses() -> None:
    stage = Stage("cloud", "phone", infos=(CLOUD, PARKING_PHONE), mode=OVERLAP)
    stage.open()
    assert [start.park for start in stage.starts] == [0.0, 30.0]
    assert stage.say("cloud", "a") == [("cancel", "r-1-phone"), ("emit", 0, 1, "a")]
    assert stage.outcomes == ["running", "parked"]


@pytest.mark.parametrize(
    "why_not",
    [
        {"mode": None},
        {"max_planned": 0},
        {"rate": None},
        {"dear": ("phone",)},
        {"infos": (CLOUD, PHONE)},
    ],
)
def test_nobody_parks_for_a_move_that_cannot_come(why_not: dict[str, object]) -> None:
    stage = Stage("cloud", "phone", **{"infos": (CLOUD, PARKING_PHONE), "mode": OVERLAP, **why_not})  # type: ignore[arg-type]
    stage.open()
    assert [start.park for start in stage.starts] == [0.0, 0.0]
    stage.say("cloud", "a")
    assert stage.outcomes == ["running", "lost"]


def test_a_leg_without_rivals_has_no_reason_to_park() -> None:
    stage = Stage("phone", infos=(CLOUD, PARKING_PHONE), mode=OVERLAP)
    stage.open()
    assert [start.park for start in stage.starts] == [0.0]


def test_the_first_of_a_hedged_plan_may_park_too() -> None:
    stage = Stage("phone", ("cloud", 0.5), infos=(CLOUD, PARKING_PHONE), mode=OVERLAP)
    stage.open()
    assert [start.park for start in stage.starts] == [30.0]
    stage.wake(0.5)
    assert [start.park for start in stage.starts] == [0.0]


def test_a_handoff_never_parks() -> None:
    stage = Stage("cloud", infos=(CLOUD, PARKING_PHONE), mode=OVERLAP)
    stage.open()
    stage.say("cloud", *"abcde")
    assert [(start.endpoint, start.park) for start in stage.starts] == [("phone", 0.0)]


@pytest.mark.parametrize(("seconds", "overhead"), [(5.0, 5), (31.0, 15)])
def test_a_parked_prefill_counts_until_it_expires(seconds: float, overhead: int) -> None:
    stage = Stage("cloud", "phone", infos=(CLOUD, PARKING_PHONE), mode=BREAK)
    stage.open()
    stage.say("cloud", "a")
    stage.now = seconds
    stage.say("cloud", *"bcde")
    assert stage.session.verdicts["phone"].overhead == pytest.approx(overhead * 1e-9)


# --- failures -------------------------------------------------------------------------------------------------------


def test_a_failure_moves_on_to_an_endpoint_not_tried_yet() -> None:
    stage = Stage("cloud")
    stage.open()
    assert stage.fail("cloud") == [("start", "r-1-phone")]
    assert stage.leg("phone").reason is LegReason.RETRY
    assert stage.starts[0].handoff is None


def test_with_one_endpoint_its_other_replica_gets_one_try() -> None:
    stage = Stage("cloud", infos=(CLOUD,))
    stage.open()
    assert stage.fail("cloud") == [("start", "r-1-cloud")]
    assert stage.fail("cloud", EndpointTimeout("late", "cloud")) == [("fail", "endpoint_unavailable")]
    assert stage.session.owner is None


@pytest.mark.parametrize("error", [Overloaded("full"), PromptTooLong("too long")])
def test_what_another_replica_would_refuse_too_is_not_retried(error: DiscoError) -> None:
    stage = Stage("cloud", infos=(CLOUD,))
    stage.open()
    assert stage.fail("cloud", error) == [("fail", error.code)]


def test_retries_count_as_rescues() -> None:
    stage = Stage("cloud", infos=ALL, max_rescues=1)
    stage.open()
    assert stage.fail("cloud") == [("start", "r-1-phone")]
    assert stage.fail("phone") == [("fail", "endpoint_unavailable")]


def test_no_rescue_allowed_no_retry() -> None:
    stage = Stage("cloud", max_rescues=0)
    stage.open()
    assert stage.fail("cloud") == [("fail", "endpoint_unavailable")]


def test_the_first_cause_is_reported() -> None:
    stage = Stage("cloud", "phone", max_rescues=0)
    stage.open()
    stage.fail("phone", EndpointFault("nonsense", "phone"))
    assert stage.fail("cloud") == [("fail", "endpoint_fault")]


def test_a_prompt_too_long_for_one_goes_to_the_next() -> None:
    stage = Stage("phone")
    stage.open()
    assert stage.fail("phone", PromptTooLong("too long")) == [("start", "r-1-cloud")]
    assert stage.say("cloud", "a") == [("emit", 0, 1, "a")]


def test_too_long_is_the_answer_only_if_it_was_too_long_for_all() -> None:
    stage = Stage("phone")
    stage.open()
    stage.fail("phone", PromptTooLong("too long"))
    assert stage.fail("cloud", PromptTooLong("too long")) == [("fail", "context_length_exceeded")]
    stage = Stage("phone", max_rescues=1)
    stage.open()
    stage.fail("phone", PromptTooLong("too long"))
    assert stage.fail("cloud", EndpointUnavailable("gone", "cloud")) == [("fail", "endpoint_unavailable")]


def test_an_invalid_request_is_answered_at_once() -> None:
    stage = Stage("cloud", "phone", ("laptop", 1.0), infos=ALL)
    stage.open()
    error = InvalidRequest("no", "prompt")
    assert stage.fail("phone", error) == [("cancel", "r-0-cloud"), ("fail", error.code)]
    assert stage.outcomes == ["cancelled", "failed"]
    assert stage.session.wake_at is None


def test_what_one_endpoint_does_not_support_another_may() -> None:
    stage = Stage("cloud", "phone")
    stage.open()
    assert stage.fail("phone", Unsupported("no", "seed")) == []
    assert stage.say("cloud", "a", finish=STOP)[-1] == ("close", STOP)
    nobody = Stage("cloud", "phone", max_rescues=0)
    nobody.open()
    nobody.fail("phone", Unsupported("no", "seed"))
    assert nobody.fail("cloud", Unsupported("no", "seed")) == [("fail", "unsupported_value")]


def test_a_target_that_failed_harmlessly_is_no_cause_of_what_comes_later() -> None:
    stage = Stage("cloud", mode=OVERLAP, rate=1.0, max_rescues=0)
    stage.open()
    stage.say("cloud", *"abcdef")
    assert stage.leg("phone").reason.value == "migration"
    stage.fail("phone", Overloaded("busy", 1.0))
    assert stage.fail("cloud", EndpointUnavailable("gone", "cloud"))[-1] == ("fail", "endpoint_unavailable")


# --- no content -----------------------------------------------------------------------------------------------------


def test_an_empty_answer_waits_for_the_others() -> None:
    stage = Stage("cloud", "phone", ("laptop", 2.0), infos=ALL)
    stage.open()
    assert stage.say("cloud", finish=STOP) == []
    assert stage.session.wake_at == 2.0
    assert stage.say("phone", "a") == [("emit", 0, 1, "a")]
    assert stage.outcomes == ["empty", "running"]


def test_an_empty_answer_starts_a_pending_hedge() -> None:
    stage = Stage("cloud", ("phone", 2.0))
    stage.open()
    assert stage.say("cloud", finish=STOP) == [("start", "r-1-phone")]


@pytest.mark.parametrize("second", ["phone", ("phone", 2.0)])
def test_an_empty_answer_stands_when_the_others_fail(second: str | tuple[str, float]) -> None:
    stage = Stage("cloud", second)
    stage.open()
    stage.accept("cloud", 12)
    stage.say("cloud", finish=STOP)
    assert stage.fail("phone") == [("close", STOP)]
    assert (stage.outcomes, stage.session.prompt_tokens) == (["empty", "failed"], 12)


def test_if_all_are_empty_so_is_the_answer() -> None:
    stage = Stage("cloud", "phone")
    stage.open()
    stage.accept("phone", 12)
    assert stage.say("cloud", finish=STOP) == []
    assert stage.say("phone", finish=STOP) == [("close", STOP)]
    assert (stage.text, stage.session.buffer.accepted, stage.session.prompt_tokens) == ("", 0, 12)


# --- contract -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "at", "finish"), [("a", 1, None), ("", 3, STOP), ("", 0, PAUSED), ("abc", 0, None), ("abc", 0, LENGTH)]
)
def test_a_racer_that_breaks_the_contract_is_out(words: str, at: int, finish: object) -> None:
    stage = Stage("cloud", "phone", max_tokens=2)
    stage.open()
    assert stage.say("phone", *words, at=at, finish=finish) == [("cancel", "r-1-phone")]  # type: ignore[arg-type]
    assert stage.leg("phone").error is not None
    assert stage.leg("phone").error.code == "endpoint_fault"  # type: ignore[union-attr]
    assert stage.session.phase is Phase.PREFILL


@pytest.mark.parametrize(
    ("receipt", "tokens"), [(None, 10), (17, 17)], ids=["the estimate without a count", "the winner's count"]
)
def test_the_prompt_is_counted_by_the_winner(receipt: int | None, tokens: int) -> None:
    stage = Stage("cloud", "phone")
    stage.open()
    stage.accept("cloud", 99)
    stage.accept("phone", receipt)
    assert stage.session.prompt_tokens == 10
    stage.say("phone", "a")
    assert stage.session.prompt_tokens == tokens
