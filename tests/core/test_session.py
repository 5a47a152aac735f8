"""One owner from its first token to the end: text, limits, contract, and what counts after the end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from serve_app.core.model import TokenChunk
from serve_app.core.protocol import (
    ChunkArrived,
    ClientLeft,
    Close,
    Delivered,
    Opened,
    Phase,
    Woke,
)
from tests.support.session_stage import BREAK, CLOUD, LENGTH, OVERLAP, PHONE, STOP, Stage, endpoint


def decoding(*words: str, **config: object) -> Stage:
    stage = Stage("cloud", **config)  # type: ignore[arg-type]
    stage.open()
    stage.accept("cloud")
    stage.say("cloud", *words)
    return stage


def test_tokens_are_emitted_as_they_come_and_the_finish_closes() -> None:
    stage = decoding("a")
    assert stage.say("cloud", "b", "c") == [("emit", 1, 2, "bc")]
    assert stage.say("cloud") == []
    assert stage.say("cloud", "d", finish=STOP) == [("emit", 3, 1, "d"), ("close", STOP)]
    assert stage.session.phase is Phase.CLOSED
    assert stage.outcomes == ["completed"]


def test_a_finish_without_a_token_closes_too() -> None:
    stage = decoding("a")
    assert stage.say("cloud", finish=LENGTH) == [("close", LENGTH)]


def test_a_one_chunk_answer() -> None:
    stage = Stage("cloud", "phone")
    stage.open()
    assert stage.say("cloud", "a", finish=STOP) == [("cancel", "r-1-phone"), ("emit", 0, 1, "a"), ("close", STOP)]


def test_an_open_character_is_held_and_a_broken_one_ends_as_nothing() -> None:
    stage = decoding("a")
    assert stage.say("cloud", "", open_tokens=1) == []
    assert stage.say("cloud", finish=STOP) == [("emit", 1, 1, ""), ("close", STOP)]
    assert stage.session.buffer.accepted == 2


# --- max_tokens -----------------------------------------------------------------------------------------------------


def test_max_tokens_end_the_stream_even_if_the_endpoint_does_not_say_so() -> None:
    stage = decoding("a", max_tokens=3)
    assert stage.say("cloud", "b", "c") == [("emit", 1, 2, "bc"), ("cancel", "r-0-cloud"), ("close", LENGTH)]


def test_a_stop_on_the_last_token_is_a_stop() -> None:
    stage = decoding("a", max_tokens=2)
    assert stage.say("cloud", "b", finish=STOP) == [("emit", 1, 1, "b"), ("close", STOP)]


def test_more_tokens_than_allowed_are_the_endpoint_s_fault() -> None:
    stage = decoding("a", max_tokens=3, max_rescues=0)
    assert stage.say("cloud", "b", "c", "d") == [("cancel", "r-0-cloud"), ("fail", "endpoint_fault")]
    assert stage.session.buffer.accepted == 1


# --- stop strings ---------------------------------------------------------------------------------------------------


def test_a_stop_string_over_chunks_closes_and_is_charged_up_to_its_end() -> None:
    stage = decoding("a", stops=("END!",))
    assert stage.say("cloud", "bE") == [("emit", 1, 0, "b")]
    assert stage.say("cloud", "ND") == []
    assert stage.say("cloud", "!x") == [("emit", 1, 3, ""), ("cancel", "r-0-cloud"), ("close", STOP)]
    assert (stage.text, stage.session.buffer.accepted, stage.leg("cloud").tokens) == ("ab", 4, 4)
    assert stage.outcomes == ["completed"]


def test_a_stop_string_that_does_not_come_true_is_shown() -> None:
    stage = decoding("a", stops=("END!",))
    assert stage.say("cloud", "EN") == []
    assert stage.say("cloud", "DO") == [("emit", 1, 2, "ENDO")]


def test_the_end_shows_what_was_held() -> None:
    stage = decoding("a", stops=("END!",))
    stage.say("cloud", "EN")
    assert stage.say("cloud", finish=STOP) == [("emit", 1, 1, "EN"), ("close", STOP)]


def test_a_stop_string_in_the_first_token() -> None:
    stage = Stage("cloud", stops=("x",))
    stage.open()
    assert stage.say("cloud", "x") == [("emit", 0, 1, ""), ("cancel", "r-0-cloud"), ("close", STOP)]


# --- contract -------------------------------------------------------------------------------------------------------


def test_an_old_chunk_is_dropped() -> None:
    stage = decoding("a", "b")
    assert stage.say("cloud", "b", at=1) == []
    assert (stage.session.buffer.accepted, stage.leg("cloud").tokens, stage.leg("cloud").used) == (2, 3, 2)


@pytest.mark.parametrize("at", [1, 3])
def test_a_gap_or_an_overlap_is_the_endpoint_s_fault(at: int) -> None:
    stage = decoding("a", "b", max_rescues=0)
    assert stage.say("cloud", "x", "y", at=at) == [("cancel", "r-0-cloud"), ("fail", "endpoint_fault")]
    assert stage.text == "ab"


# --- the end --------------------------------------------------------------------------------------------------------


def in_prefill() -> Stage:
    stage = Stage("cloud", ("phone", 0.5))
    stage.open()
    return stage


def in_a_race() -> Stage:
    stage = Stage("cloud", "phone")
    stage.open()
    return stage


def with_a_watched_loser() -> Stage:
    stage = in_a_race()
    stage.say("phone", "a")
    return stage


def in_a_break() -> Stage:
    return decoding(*"abcde", mode=BREAK)


def in_an_overlap() -> Stage:
    return decoding(*"abcde", mode=OVERLAP)


def paused() -> Stage:
    return decoding(*"abcdefghijkl", ahead_tokens=16)


PHASES: dict[Callable[[], Stage], tuple[Phase, list[str], list[str]]] = {
    in_prefill: (Phase.PREFILL, ["r-0-cloud"], ["cancelled"]),
    in_a_race: (Phase.PREFILL, ["r-0-cloud", "r-1-phone"], ["cancelled", "cancelled"]),
    lambda: decoding("a"): (Phase.DECODE, ["r-0-cloud"], ["cancelled"]),
    with_a_watched_loser: (Phase.DECODE, ["r-0-cloud", "r-1-phone"], ["lost", "cancelled"]),
    in_a_break: (Phase.HANDOFF, ["r-1-phone"], ["handed_over", "cancelled"]),
    in_an_overlap: (Phase.HANDOFF, ["r-0-cloud", "r-1-phone"], ["cancelled", "cancelled"]),
    paused: (Phase.PAUSED, [], ["paused"]),
}


@pytest.mark.parametrize(("make", "expected"), PHASES.items())
def test_a_client_that_leaves_stops_everything(
    make: Callable[[], Stage], expected: tuple[Phase, list[str], list[str]]
) -> None:
    stage = make()
    phase, cancelled, outcomes = expected
    assert stage.session.phase is phase
    assert stage.leave() == [*(("cancel", attempt) for attempt in cancelled), ("close", None)]
    assert stage.raw[-1] == Close()
    assert stage.outcomes == outcomes
    assert all(record.outcome == "cancelled" for record in stage.session.migrations)
    assert (stage.session.wake_at, stage.session.owner, stage.session.closed_at) == (None, None, 0.0)


def test_the_client_may_leave_before_anything_happened() -> None:
    assert Stage("cloud").leave() == [("close", None)]


@pytest.mark.parametrize("make", PHASES)
def test_nothing_follows_the_end(make: Callable[[], Stage]) -> None:
    stage = make()
    stage.leave()
    stage.now = 1000.0
    assert stage.tell(Opened()) == stage.tell(Woke()) == stage.tell(ClientLeft()) == stage.tell(Delivered(1)) == []
    for leg in stage.session.legs:
        assert stage.accept(leg.attempt) == stage.say(leg.attempt, "x", finish=STOP) == stage.fail(leg.attempt) == []
    assert stage.session.phase is Phase.CLOSED


# --- accounts of dead attempts --------------------------------------------------------------------------------------


def test_a_dead_attempt_keeps_its_account() -> None:
    stage = in_a_race()
    stage.say("cloud", "a")
    before = (stage.session.buffer.accepted, stage.text, stage.outcomes)
    stage.now = 1.5
    assert stage.accept("phone", 11) == []
    assert stage.say("phone", "x", "y") == []
    assert stage.fail("phone") == []
    assert (stage.session.buffer.accepted, stage.text, stage.outcomes) == before
    phone = stage.leg("phone")
    assert phone.receipt is not None
    assert (phone.receipt.prompt_tokens, phone.tokens, phone.used, phone.ttft) == (11, 2, 0, 1.5)
    assert (phone.error, phone.ended) == (None, 0.0)


def test_what_arrives_after_the_end_is_still_charged() -> None:
    stage = in_a_race()
    stage.leave()
    assert stage.accept("phone", 11) == stage.say("phone", "x", "y") == []
    assert stage.leg("phone").receipt is not None
    assert stage.leg("phone").tokens == 2


def test_attempts_have_their_own_names() -> None:
    stage = Stage("cloud", infos=(CLOUD,), max_rescues=2)
    stage.open()
    stage.say("cloud", "a")
    assert stage.fail("cloud") == [("start", "r-1-cloud")]
    stage.say("cloud", "b")
    assert stage.say("r-0-cloud", "x") == [], "the first leg is dead, the second lives"
    assert stage.say("r-1-cloud", "c") == [("emit", 2, 1, "c")]


def test_an_emit_names_its_writer() -> None:
    stage = decoding("a", infos=(CLOUD, PHONE))
    stage.fail("cloud")
    assert stage.say("phone", "b") == [("emit", 1, 1, "b")]
    assert stage.raw[-1].endpoint == "phone"  # type: ignore[union-attr]


def test_imitation_lateness_is_the_worst_of_all_chunks() -> None:
    stage = decoding("a", infos=(CLOUD, endpoint("phone")))
    for index, late in ((1, 0.2), (2, 0.1)):
        stage.tell(ChunkArrived("r-0-cloud", TokenChunk(index, "x", imitation_late=late)))
    assert stage.leg("cloud").late == 0.2
