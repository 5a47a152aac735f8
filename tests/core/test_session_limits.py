"""Time limits, and readers that do not keep up."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from actors.pacing import clock_for
from serve_app.core.legs import LegReason
from serve_app.core.model import ContinuesBy, Handoff
from serve_app.core.protocol import Phase
from tests.support.session_stage import BREAK, CLOUD, LENGTH, OVERLAP, PAUSED, PHONE, STOP, Stage, endpoint

# --- watchdogs ------------------------------------------------------------------------------------------------------


def test_a_leg_without_a_first_token_has_failed() -> None:
    stage = Stage("cloud", first_token_timeout=3.0, max_rescues=1)
    stage.open()
    stage.now = 2.0
    stage.accept("cloud")
    stage.say("cloud")
    assert stage.session.wake_at == 3.0, "signs of life are no token"
    assert stage.wake(2.999) == []
    assert stage.wake(3.0) == [("cancel", "r-0-cloud"), ("start", "r-1-phone")]
    assert stage.outcomes == ["failed", "running"]
    assert stage.wake(6.0) == [("cancel", "r-1-phone"), ("fail", "endpoint_timeout")]


def test_two_racers_that_stay_silent_fail_together() -> None:
    stage = Stage("cloud", "phone", first_token_timeout=3.0, max_rescues=0)
    stage.open()
    assert stage.wake(3.0) == [("cancel", "r-0-cloud"), ("cancel", "r-1-phone"), ("fail", "endpoint_timeout")]


def test_a_silent_owner_is_rescued() -> None:
    stage = Stage("cloud", idle_timeout=1.0, slack=0.5)
    stage.open()
    stage.say("cloud", "a")
    assert stage.session.wake_at == 1.5
    stage.now = 1.4
    stage.say("cloud")
    assert stage.wake(1.5) == [], "a sign of life"
    assert stage.session.wake_at == 2.9
    assert stage.wake(2.9) == [("cancel", "r-0-cloud"), ("start", "r-1-phone")]
    assert stage.leg("cloud").error is not None
    assert stage.leg("cloud").error.code == "endpoint_timeout"  # type: ignore[union-attr]


def test_a_silent_target_of_a_break_is_rescued_by_the_source() -> None:
    stage = Stage("cloud", mode=BREAK, first_token_timeout=3.0)
    stage.open()
    stage.say("cloud", *"abcde")
    assert stage.wake(3.0) == [("cancel", "r-1-phone"), ("start", "r-2-cloud")]


def test_a_standby_source_that_falls_silent_is_noticed() -> None:
    stage = Stage("cloud", mode=OVERLAP, idle_timeout=0.3, slack=0.1)
    stage.open()
    stage.say("cloud", *"abcde")
    assert stage.wake(0.4) == [("cancel", "r-0-cloud")]
    assert stage.say("phone", "f") == [("emit", 5, 1, "f")]


def test_a_stream_has_a_last_moment() -> None:
    stage = Stage("cloud", "phone", stream_timeout=10.0)
    stage.open()
    stage.say("phone", "a")
    stage.now = 9.0
    stage.say("phone", "b")
    assert stage.session.wake_at == 10.0
    assert stage.wake(10.0) == [("cancel", "r-0-cloud"), ("cancel", "r-1-phone"), ("fail", "endpoint_timeout")]
    assert stage.outcomes == ["lost", "cancelled"]
    assert stage.session.wake_at is None


def test_a_stream_without_any_token_has_a_last_moment_too() -> None:
    stage = Stage("cloud", stream_timeout=10.0)
    stage.open()
    assert stage.wake(10.0) == [("cancel", "r-0-cloud"), ("fail", "endpoint_timeout")]


# --- pause and resume -----------------------------------------------------------------------------------------------


def test_a_reader_that_takes_nothing_pauses_its_stream() -> None:
    stage = Stage("cloud", ahead_tokens=16)
    stage.open()
    stage.say("cloud", *"abcdefghijk")
    assert stage.say("cloud", "l") == [("emit", 11, 1, "l"), ("cancel", "r-0-cloud")]
    assert (stage.session.phase, stage.session.owner, stage.outcomes) == (Phase.PAUSED, None, ["paused"])
    assert stage.say("cloud", "m") == [], "in flight"
    assert stage.wake(100.0) == [], "nothing that could time out"
    assert stage.deliver(7) == []
    assert stage.deliver(1) == [("start", "r-1-cloud")]
    start = stage.starts[0]
    assert start.handoff is not None
    assert (start.handoff.next_index, start.max_tokens) == (12, 88)
    assert stage.leg("cloud").reason is LegReason.RESUME
    assert stage.say("cloud", "m") == [("emit", 12, 1, "m")]


def test_a_reader_of_unknown_speed_gives_an_allowance() -> None:
    stage = Stage("cloud", rate=None, ahead_tokens=16)
    stage.open()
    pace = stage.starts[0].pace
    assert (pace.rate, pace.ahead_limit) == (None, 16)
    stage.say("cloud", *"abcdefgh")
    stage.deliver(8)
    stage.say("cloud", *"ijklmnop")
    stage.deliver(2)
    assert stage.say("cloud", finish=PAUSED) == []
    assert stage.outcomes == ["paused"]
    assert stage.deliver(2) == [("start", "r-1-cloud")]
    assert stage.starts[0].pace.ahead_limit == 12


def test_a_leg_that_pauses_when_everything_is_delivered_goes_on_at_once() -> None:
    stage = Stage("cloud", rate=None, ahead_tokens=16)
    stage.open()
    stage.say("cloud", "a")
    stage.deliver(1)
    assert stage.say("cloud", finish=PAUSED) == [("start", "r-1-cloud")]


def test_tokens_that_cannot_be_shown_yet_do_not_keep_a_stream_paused() -> None:
    stage = Stage("cloud", rate=None, ahead_tokens=16, stops=("aaaaaaaaaaaaaaaaaaaa",))
    stage.open()
    assert stage.say("cloud", *"aaaaaaaaaaaa") == [("cancel", "r-0-cloud"), ("start", "r-1-cloud")]


def test_what_cannot_be_resumed_is_not_paused() -> None:
    cloud = endpoint("cloud", continues=ContinuesBy.NO)
    stage = Stage("cloud", infos=(cloud,), rate=None, ahead_tokens=16)
    stage.open()
    assert stage.starts[0].pace.ahead_limit == 100
    assert stage.say("cloud", *"abcdefghijklmnopqrstuvwxyz") == [("emit", 0, 26, "abcdefghijklmnopqrstuvwxyz")]


def test_a_pause_at_the_last_token_is_the_end() -> None:
    stage = Stage("cloud", rate=None, max_tokens=1)
    stage.open()
    assert stage.say("cloud", "a", finish=PAUSED) == [("emit", 0, 1, "a"), ("close", LENGTH)]


def test_a_resumed_leg_that_fails_is_rescued() -> None:
    stage = Stage("cloud", rate=None)
    stage.open()
    stage.say("cloud", "a", finish=PAUSED)
    assert stage.fail("r-1-cloud") == [("start", "r-2-phone")]
    assert stage.say("phone", "b", finish=STOP) == [("emit", 1, 1, "b"), ("close", STOP)]


def test_a_pause_inside_a_character_resumes_by_text_before_it() -> None:
    stage = Stage("cloud", infos=(endpoint("cloud", continues=ContinuesBy.TEXT), PHONE), rate=None)
    stage.open()
    stage.say("cloud", "a", "", open_tokens=1, finish=PAUSED)
    assert stage.starts[0].handoff == Handoff("a", 1)


def test_a_standby_s_surplus_may_pause_the_stream() -> None:
    stage = Stage("cloud", mode=OVERLAP, ahead_tokens=16)
    stage.open()
    stage.say("cloud", *"abcde")
    for word in "fghijklmn":
        stage.say("cloud", word)
    assert stage.wake(1.25)[-1] == ("cancel", "r-0-cloud")
    assert (stage.text, stage.session.phase) == ("abcdefghijkl", Phase.PAUSED)


# --- bounds ---------------------------------------------------------------------------------------------------------


@dataclass
class Bound:
    worst: int
    legs: int
    accepted: int


def run_against(rate: float | None, ahead: int, taken: list[int], mode: object = None) -> Bound:
    """An endpoint that writes 50 tokens per second within its pace; every 20 ms the reader takes ``taken[step]``."""
    stage = Stage("cloud", infos=(CLOUD, PHONE), rate=rate, ahead_tokens=ahead, max_tokens=4000, mode=mode)  # type: ignore[arg-type]
    stage.open()
    firsts: dict[str, float] = {}
    paces = {start.attempt: start.pace for start in stage.starts}
    worst = 0
    for step, tokens in enumerate(taken):
        stage.now = step / 50
        stage.deliver(tokens)
        paces.update({start.attempt: start.pace for start in stage.starts})
        stage.wake(stage.now)
        for leg in [leg for leg in stage.session.legs if leg.live]:
            pace = paces[leg.attempt]
            clock = clock_for(pace, leg.started, firsts.get(leg.attempt))
            if clock is not None and clock.allowance(leg.tokens, stage.now) == 0:
                stage.say(leg.attempt, finish=PAUSED if pace.rate is None else None)
            else:
                firsts.setdefault(leg.attempt, stage.now)
                stage.say(leg.attempt, "x")
            paces.update({start.attempt: start.pace for start in stage.starts})
        worst = max(worst, stage.session.buffer.accepted - stage.session.buffer.delivered)
    return Bound(worst, len(stage.session.legs), stage.session.buffer.accepted)


@pytest.mark.parametrize("rate", [None, 4.8, 40.0])
@pytest.mark.parametrize("ahead", [16, 64])
def test_never_more_than_ahead_tokens_are_generated_beyond_the_reader(rate: float | None, ahead: int) -> None:
    stopped = run_against(rate, ahead, [0] * 1500)
    assert 0 < stopped.worst <= ahead
    assert stopped.legs == 1
    fits_and_starts = run_against(rate, ahead, [*([1] * 100), *([0] * 600), *([3] * 100), *([0] * 600)])
    assert 0 < fits_and_starts.worst <= ahead
    assert fits_and_starts.accepted > stopped.accepted


@pytest.mark.parametrize("rate", [4.8, 40.0])
def test_a_reader_that_keeps_up_never_pauses_its_stream(rate: float) -> None:
    steady = [math.floor((step + 1) * rate / 50) - math.floor(step * rate / 50) for step in range(1500)]
    bound = run_against(rate, 64, [1, *steady])
    assert bound.legs == 1
    assert bound.accepted >= 30 * rate
    assert bound.worst <= 64 * 3 // 4


@pytest.mark.parametrize("mode", [BREAK, OVERLAP])
def test_the_bound_holds_over_a_migration(mode: object) -> None:
    assert run_against(4.8, 64, [0] * 1500, mode).worst <= 64
