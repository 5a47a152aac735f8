"""HANDOFF: planned migrations by break and overlap, rescues, and what travels."""

from __future__ import annotations

import pytest

from serve_app.core.cost import UnitCost
from serve_app.core.errors import EndpointTimeout, InvalidRequest, PromptTooLong
from serve_app.core.legs import LegReason
from serve_app.core.migration import Verdict
from serve_app.core.model import ContinuesBy, Handoff
from serve_app.core.protocol import Phase
from serve_app.core.session import DRY_MARGIN
from tests.support.session_stage import (
    BREAK,
    CLOUD,
    LAPTOP,
    LENGTH,
    OVERLAP,
    PHONE,
    STOP,
    Stage,
    endpoint,
    id_of,
)

ALL = (CLOUD, PHONE, LAPTOP)
FIVE = "abcde"


def handing_over(mode: object, words: str = FIVE, **config: object) -> Stage:
    """Five tokens at once: four lie unread, which is what a handoff needs. The lead lasts until 1.25 s."""
    stage = Stage("cloud", mode=mode, **config)  # type: ignore[arg-type]
    stage.open()
    stage.accept("cloud")
    stage.say("cloud", *words)
    assert stage.session.phase is Phase.HANDOFF
    return stage


# --- planned --------------------------------------------------------------------------------------------------------


def test_what_was_never_weighed_has_no_numbers() -> None:
    stage = Stage("cloud", mode=OVERLAP, rate=None)
    stage.open()
    stage.say("cloud", "a")
    verdict = stage.session.verdicts["phone"]
    assert (verdict.verdict, verdict.saving, verdict.lead, verdict.gain) == (Verdict.READER_UNKNOWN, None, None, 0.0)


def test_a_stream_waits_until_the_buffer_is_full() -> None:
    stage = Stage("cloud", mode=OVERLAP)
    stage.open()
    assert stage.say("cloud", *"abcd") == [("emit", 0, 4, "abcd")]
    assert stage.session.verdicts["phone"].verdict is Verdict.BUFFER
    assert (stage.session.verdicts["phone"].lead, stage.session.verdicts["phone"].buffer_needed) == (3, 4.0)
    assert stage.say("cloud", "e") == [("emit", 4, 1, "e"), ("start", "r-1-phone")]
    assert stage.session.verdicts["phone"].verdict is Verdict.GO
    assert (stage.starts[0].max_tokens, stage.starts[0].pace.lead) == (95, 4.0)


def test_break_stops_the_source_at_the_trigger() -> None:
    stage = Stage("cloud", mode=BREAK)
    stage.open()
    assert stage.say("cloud", *FIVE) == [("emit", 0, 5, "abcde"), ("cancel", "r-0-cloud"), ("start", "r-1-phone")]
    assert stage.outcomes == ["handed_over", "running"]
    assert stage.session.owner is None
    assert stage.say("cloud", "x") == [], "surplus"
    stage.now = 0.9
    assert stage.accept("phone") == []
    stage.now = 1.0
    assert stage.say("phone", "f") == [("emit", 5, 1, "f")]
    assert (stage.leg("cloud").tokens, stage.leg("cloud").used) == (6, 5)
    record = stage.session.migrations[0]
    assert (record.source, record.target, record.at_token, record.reason) == ("cloud", "phone", 5, LegReason.MIGRATION)
    assert (record.outcome, record.mode, record.accepted_after, record.gap) == ("completed", "break", 0.9, 1.0)


def test_overlap_keeps_the_source_as_a_standby_and_drops_its_surplus() -> None:
    stage = handing_over(OVERLAP)
    assert stage.outcomes == ["running", "running"]
    assert stage.say("cloud", "x", "y") == [], "nothing of the surplus is shown while the handoff is pending"
    assert stage.say("cloud") == []
    assert stage.accept("phone") == stage.say("phone") == []
    stage.now = 1.0
    assert stage.say("phone", "f") == [("cancel", "r-0-cloud"), ("emit", 5, 1, "f")]
    assert (stage.text, stage.outcomes) == ("abcdef", ["handed_over", "running"])
    assert (stage.leg("cloud").tokens, stage.leg("cloud").used) == (7, 5)
    assert stage.session.migrations[0].mode == "overlap"
    assert stage.wake(1.25) == []


def test_overlap_is_abandoned_when_the_lead_runs_out() -> None:
    stage = handing_over(OVERLAP)
    stage.say("cloud", "f", "g")
    stage.say("cloud", "h")
    assert stage.session.wake_at == pytest.approx(1.25 - DRY_MARGIN)
    assert stage.wake(1.2) == []
    assert stage.wake(1.25) == [("cancel", "r-1-phone"), ("emit", 5, 2, "fg"), ("emit", 7, 1, "h")]
    assert stage.outcomes == ["running", "abandoned"]
    assert stage.session.migrations[0].outcome == "abandoned"
    arrivals = stage.session.buffer.arrivals
    assert all(arrival <= i / 4.0 for i, arrival in enumerate(arrivals) if i), "the reader noticed nothing"
    assert stage.say("phone", "x") == [], "too late"
    assert stage.say("cloud", *"ijklm") == [("emit", 8, 5, "ijklm")]
    assert stage.session.verdicts["phone"].verdict is Verdict.LIMIT


def test_the_source_may_finish_during_the_handoff() -> None:
    stage = handing_over(OVERLAP)
    stage.say("cloud", "f")
    assert stage.say("cloud", "g", finish=STOP) == [
        ("cancel", "r-1-phone"),
        ("emit", 5, 1, "f"),
        ("emit", 6, 1, "g"),
        ("close", STOP),
    ]
    assert stage.outcomes == ["completed", "abandoned"]


def test_the_source_may_finish_without_a_token() -> None:
    stage = handing_over(OVERLAP)
    assert stage.say("cloud", finish=LENGTH) == [("cancel", "r-1-phone"), ("close", LENGTH)]


def test_the_source_may_reach_max_tokens_during_the_handoff() -> None:
    # A long answer is expected when the move is decided, and the source writes all of it before the target starts.
    stage = handing_over(OVERLAP, max_tokens=30)
    words = [chr(ord("f") + i) for i in range(25)]
    commands = stage.say("cloud", *words, finish=LENGTH)
    assert commands == [("cancel", "r-1-phone"), ("emit", 5, 25, "".join(words)), ("close", LENGTH)]


def test_a_target_that_fails_gives_the_stream_back() -> None:
    stage = handing_over(OVERLAP)
    stage.say("cloud", "f")
    stage.now = 0.3
    assert stage.fail("phone") == [("emit", 5, 1, "f")]
    assert stage.session.phase is Phase.DECODE
    assert stage.session.migrations[0].outcome == "failed"
    assert stage.say("cloud", "g") == [("emit", 6, 1, "g")]
    assert stage.session.verdicts["phone"].verdict is Verdict.LIMIT


@pytest.mark.parametrize("error", [InvalidRequest("no prefix"), PromptTooLong("too long")])
def test_a_target_that_refuses_gives_the_stream_back_too(error: Exception) -> None:
    stage = handing_over(OVERLAP)
    assert stage.fail("phone", error) == []  # type: ignore[arg-type]
    assert stage.say("cloud", "f", finish=STOP) == [("emit", 5, 1, "f"), ("close", STOP)]


def test_a_source_that_fails_leaves_the_target_in_charge() -> None:
    stage = handing_over(OVERLAP)
    stage.say("cloud", "x")
    assert stage.fail("cloud") == []
    assert stage.wake(1.25) == [], "there is nobody to go back to"
    assert stage.say("phone", "f") == [("emit", 5, 1, "f")]
    assert stage.outcomes == ["failed", "running"]


def test_when_both_fail_a_third_rescues() -> None:
    stage = handing_over(OVERLAP, infos=ALL)
    stage.fail("cloud")
    assert stage.fail("phone") == [("start", "r-2-laptop")]
    assert stage.leg("laptop").reason is LegReason.RESCUE
    assert stage.say("laptop", "f") == [("emit", 5, 1, "f")]
    assert [record.outcome for record in stage.session.migrations] == ["failed", "completed"]


def test_a_failed_target_of_a_break_is_rescued_by_the_source() -> None:
    stage = handing_over(BREAK)
    assert stage.fail("phone") == [("start", "r-2-cloud")]
    assert stage.say("cloud", "f") == [("emit", 5, 1, "f")]
    assert stage.say("cloud", *"ghijk") == [("emit", 6, 5, "ghijk")]
    assert stage.session.verdicts["phone"].verdict is Verdict.LIMIT


def test_a_target_that_has_nothing_to_add_ends_the_stream() -> None:
    stage = handing_over(OVERLAP)
    stage.say("cloud", "x")
    assert stage.say("phone", finish=STOP) == [("cancel", "r-0-cloud"), ("close", STOP)]
    assert (stage.text, stage.outcomes) == ("abcde", ["handed_over", "empty"])


def test_a_target_may_bring_the_last_token() -> None:
    stage = handing_over(OVERLAP)
    assert stage.say("phone", "f", finish=STOP) == [("cancel", "r-0-cloud"), ("emit", 5, 1, "f"), ("close", STOP)]


@pytest.mark.parametrize(("words", "at"), [("f", 4), ("f", 6), ("abcdef", 0)])
def test_a_target_that_starts_elsewhere_never_owns_the_stream(words: str, at: int) -> None:
    stage = handing_over(OVERLAP)
    assert stage.say("phone", *words, at=at) == [("cancel", "r-1-phone")]
    assert stage.session.owner == "cloud"
    assert stage.text == "abcde"


def test_surplus_that_breaks_the_contract_is_found_when_it_is_shown() -> None:
    stage = handing_over(OVERLAP, infos=ALL)
    stage.say("cloud", "f")
    stage.say("cloud", "x", at=9)
    stage.say("cloud", "y", at=10)
    assert stage.wake(1.25) == [
        ("cancel", "r-1-phone"),
        ("emit", 5, 1, "f"),
        ("cancel", "r-0-cloud"),
        ("start", "r-2-phone"),
    ]
    assert stage.text == "abcdef"


def test_a_stop_string_in_the_surplus_counts_once_it_is_shown() -> None:
    stage = handing_over(OVERLAP, stops=("gh",))
    stage.say("cloud", "f")
    stage.say("cloud", "g")
    stage.say("cloud", "h")
    stage.say("cloud", "i")
    assert stage.wake(1.25)[-2:] == [("cancel", "r-0-cloud"), ("close", STOP)]
    assert (stage.text, stage.session.buffer.accepted) == ("abcdef", 8)


@pytest.mark.parametrize(("allowed", "verdict"), [(1, Verdict.LIMIT), (2, Verdict.UNHEALTHY)])
def test_planned_moves_are_limited_and_never_go_to_what_failed(allowed: int, verdict: Verdict) -> None:
    stage = handing_over(BREAK, max_planned=allowed)
    stage.say("phone", "f")
    stage.fail("phone")
    stage.say("cloud", *"ghij")
    assert stage.session.verdicts["phone"].verdict is verdict


def test_a_failed_planned_move_bars_even_those_that_are_left() -> None:
    stage = Stage("cloud", infos=(CLOUD, PHONE, LAPTOP), dear=("cloud",), mode=BREAK, max_planned=2)
    stage.costs.unit["laptop"] = UnitCost(0.0, 0.0)  # type: ignore[index]
    stage.open()
    stage.say("cloud", *FIVE)
    stage.fail("laptop")
    assert stage.session.phase is Phase.HANDOFF
    stage.say(stage.session.legs[-1].attempt, *"fghij")
    assert stage.session.verdicts["phone"].verdict is Verdict.LIMIT


def test_surplus_of_one_move_never_shows_up_after_the_next() -> None:
    stage = handing_over(OVERLAP, infos=(CLOUD, PHONE, LAPTOP), max_planned=2)
    for surplus in "STUVWXYZ":
        stage.say("cloud", surplus)
    stage.costs.unit["laptop"] = UnitCost(0.0, 0.0)  # type: ignore[index]
    stage.costs.unit["phone"] = UnitCost(0.0, 1e-3)  # type: ignore[index]
    assert stage.say("phone", *"fghij")[-1] == ("start", "r-2-laptop")
    assert stage.fail("laptop") == []
    assert stage.text == "abcdefghij"


def test_the_best_of_several_targets_is_chosen() -> None:
    stage = Stage("cloud", infos=ALL, mode=OVERLAP, dear=("cloud",))
    stage.costs.unit["laptop"] = UnitCost(0.0, 0.0)  # type: ignore[index]
    stage.open()
    assert stage.say("cloud", *FIVE)[-1] == ("start", "r-1-laptop")


def test_a_move_waits_for_whole_characters() -> None:
    stage = Stage("cloud", mode=OVERLAP)
    stage.open()
    assert stage.say("cloud", *FIVE, "", open_tokens=1) == [("emit", 0, 5, "abcde")]
    assert stage.session.verdicts["phone"].verdict is Verdict.OPEN_CHARACTER
    assert stage.say("cloud", "é")[-1] == ("start", "r-1-phone")


def test_an_unknown_reader_is_never_moved_to_save_money() -> None:
    stage = Stage("cloud", mode=OVERLAP, rate=None)
    stage.open()
    stage.say("cloud", *FIVE)
    assert stage.session.verdicts["phone"].verdict is Verdict.READER_UNKNOWN


# --- rescues --------------------------------------------------------------------------------------------------------


def broken(*words: str, **config: object) -> Stage:
    stage = Stage("cloud", **config)  # type: ignore[arg-type]
    stage.open()
    stage.accept("cloud")
    stage.say("cloud", *words)
    return stage


def test_a_rescue_continues_from_the_accepted_tokens() -> None:
    stage = broken("a", "b")
    assert stage.fail("cloud") == [("start", "r-1-phone")]
    start = stage.starts[0]
    assert start.handoff is not None
    assert (start.handoff.text, start.handoff.token_ids) == ("ab", (id_of("a"), id_of("b")))
    assert start.max_tokens == 98
    assert stage.say("phone", "c", finish=STOP) == [("emit", 2, 1, "c"), ("close", STOP)]
    assert [(r.reason, r.mode, r.source) for r in stage.session.migrations] == [(LegReason.RESCUE, "break", "cloud")]


def test_rescues_are_limited_and_the_first_cause_is_reported() -> None:
    stage = broken("a", infos=ALL)
    stage.fail("cloud", EndpointTimeout("late", "cloud"))
    stage.say("phone", "b")
    assert stage.fail("phone") == [("start", "r-2-laptop")]
    stage.say("laptop", "c")
    assert stage.fail("laptop") == [("fail", "endpoint_timeout")]
    assert stage.text == "abc"
    assert [(record.source, record.target) for record in stage.session.migrations] == [
        ("cloud", "phone"),
        ("phone", "laptop"),
    ]


def test_a_rescue_that_fails_is_rescued() -> None:
    stage = broken("a", infos=ALL)
    stage.fail("cloud")
    assert stage.fail("phone", InvalidRequest("no prefix")) == [("start", "r-2-laptop")]
    assert stage.fail("laptop") == [("fail", "endpoint_unavailable")]


def test_a_failed_rescue_does_not_bar_a_planned_move() -> None:
    stage = broken("a", infos=(CLOUD, endpoint("cloud2"), PHONE), mode=OVERLAP)
    stage.fail("cloud")
    assert stage.fail("cloud2") == [("start", "r-2-phone")]
    stage = broken("a", infos=(CLOUD, LAPTOP, endpoint("cloud2"), PHONE), mode=OVERLAP)
    stage.fail("cloud")
    assert stage.fail("laptop") == [("start", "r-2-cloud2")]
    assert stage.say("cloud2", *"bcdef")[-1] == ("start", "r-3-phone")


def test_no_rescues_allowed() -> None:
    assert broken("a", max_rescues=0).fail("cloud") == [("fail", "endpoint_unavailable")]


def test_a_failed_endpoint_gets_one_more_chance_if_it_is_the_only_one() -> None:
    stage = broken("a", infos=(CLOUD,), max_rescues=5)
    assert stage.fail("cloud") == [("start", "r-1-cloud")]
    assert stage.fail("cloud") == [("fail", "endpoint_unavailable")]


def test_only_endpoints_that_can_continue_rescue() -> None:
    stage = broken("a", infos=(CLOUD, endpoint("phone", continues=ContinuesBy.NO), LAPTOP))
    assert stage.fail("cloud") == [("start", "r-1-laptop")]


def test_an_endpoint_with_room_for_the_whole_answer_is_preferred() -> None:
    stage = broken("a", infos=(CLOUD, endpoint("phone", context=50), LAPTOP))
    assert stage.fail("cloud") == [("start", "r-1-laptop")]
    stage = broken("a", infos=(CLOUD, endpoint("phone", context=11), endpoint("laptop", context=50)))
    assert stage.fail("cloud") == [("start", "r-1-laptop")]


def test_max_tokens_hold_over_legs_and_no_leg_gets_none() -> None:
    stage = broken(*"abcdefgh", max_tokens=20)
    stage.fail("cloud")
    assert stage.starts[0].max_tokens == 12
    rest = "ijklmnopqrst"
    assert stage.say("phone", *rest) == [("emit", 8, 12, rest), ("cancel", "r-1-phone"), ("close", LENGTH)]
    assert stage.session.buffer.accepted == 20
    assert stage.fail("phone") == []


def test_a_cut_at_the_last_token_needs_nobody() -> None:
    stage = broken(*"abc", max_tokens=4)
    assert stage.say("cloud", "d")[-1] == ("close", LENGTH)
    assert stage.fail("cloud") == []
    assert len(stage.session.legs) == 1


def test_a_stop_string_over_a_handoff() -> None:
    stage = broken("a", "EN", stops=("END!",))
    stage.fail("cloud")
    handoff = stage.starts[0].handoff
    assert handoff is not None
    assert (handoff.text, stage.text) == ("aEN", "a")
    assert stage.say("phone", "D") == []
    assert stage.say("phone", "!b") == [("emit", 0, 4, ""), ("cancel", "r-1-phone"), ("close", STOP)]
    assert (stage.text, stage.session.buffer.accepted) == ("a", 4)


# --- what travels ---------------------------------------------------------------------------------------------------


def test_open_tokens_travel_by_ids() -> None:
    stage = broken("a")
    stage.say("cloud", "", open_tokens=1)
    stage.fail("cloud")
    handoff = stage.starts[0].handoff
    assert handoff is not None
    assert (handoff.next_index, handoff.token_ids) == (2, (id_of("a"), id_of("")))
    assert stage.say("phone", "é") == [("emit", 1, 2, "é")]


BY_TEXT = [
    endpoint("phone", vocabulary="w"),
    endpoint("phone", vocabulary=None),
    endpoint("phone", continues=ContinuesBy.TEXT),
]


@pytest.mark.parametrize("phone", BY_TEXT, ids=["other vocabulary", "no vocabulary", "no ids"])
def test_open_tokens_are_rolled_back_by_text(phone: object) -> None:
    stage = broken("a", infos=(CLOUD, phone))
    stage.say("cloud", "", open_tokens=1)
    stage.fail("cloud")
    assert stage.starts[0].handoff == Handoff("a", 1)
    assert (stage.starts[0].max_tokens, stage.session.buffer.accepted) == (99, 1)
    assert stage.say("phone", "é") == [("emit", 1, 1, "é")]


def test_a_handoff_by_ids_that_fails_is_rolled_back_for_a_rescue_by_text() -> None:
    stage = broken("a", infos=(CLOUD, PHONE, endpoint("laptop", vocabulary="w")))
    stage.say("cloud", "", open_tokens=1)
    stage.fail("cloud")
    assert stage.session.buffer.accepted == 2
    stage.fail("phone")
    assert stage.starts[0].handoff == Handoff("a", 1)
    assert stage.session.buffer.accepted == 1


def test_after_a_leg_with_another_vocabulary_only_text_travels() -> None:
    stage = broken("a", infos=(CLOUD, endpoint("phone", vocabulary="w"), LAPTOP))
    stage.fail("cloud")
    stage.say("phone", "b")
    stage.fail("phone")
    assert stage.starts[0].endpoint == "laptop"
    assert stage.starts[0].handoff == Handoff("ab", 2)


def test_a_planned_move_by_text() -> None:
    stage = handing_over(OVERLAP, infos=(CLOUD, endpoint("phone", vocabulary="w")))
    assert stage.starts[0].handoff == Handoff("abcde", 5)
    assert stage.say("phone", "f") == [("cancel", "r-0-cloud"), ("emit", 5, 1, "f")]


def test_an_empty_handoff_still_names_its_vocabulary() -> None:
    stage = Stage("cloud", infos=(CLOUD, endpoint("phone", vocabulary="w")))
    stage.open()
    stage.say("cloud", "", open_tokens=1)
    stage.fail("cloud")
    assert stage.starts[0].handoff == Handoff("", 0)
    assert stage.say("phone", "b") == [("emit", 0, 1, "b")]


def test_a_gap_is_unknown_where_nothing_was_shown() -> None:
    stage = Stage("cloud", stops=("abc",))
    stage.open()
    stage.say("cloud", "a")
    stage.fail("cloud")
    stage.say("phone", "b")
    assert stage.session.migrations[0].gap is None
