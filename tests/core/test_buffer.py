from __future__ import annotations

import pytest

from serve_app.core.buffer import OutOfOrder, Release, TokenBuffer
from serve_app.core.model import Handoff, TokenChunk


def chunk(index: int, text: str, *ids: int, open_tokens: int = 0) -> TokenChunk:
    return TokenChunk(index, text, ids, max(1, len(ids)), open_tokens)


def filled(rate: float | None, arrivals: list[float]) -> TokenBuffer:
    buffer = TokenBuffer(rate)
    for index, arrival in enumerate(arrivals):
        buffer.accept(chunk(index, "x", index), "v", arrival)
    return buffer


def test_tokens_are_released_with_their_text() -> None:
    buffer = TokenBuffer(4.0)
    assert buffer.accept(chunk(0, "ab", 1, 2), "v", 1.0) == Release(0, 2, "ab")
    assert buffer.accept(chunk(2, "c", 3), "v", 2.0) == Release(2, 1, "c")
    assert buffer.arrivals == [1.0, 1.0, 2.0]
    assert (buffer.accepted, buffer.releasable, buffer.delivered, buffer.backlog) == (3, 3, 0, 3)


def test_delivered_never_exceeds_what_was_releasable() -> None:
    buffer = filled(4.0, [0.0, 0.0])
    buffer.deliver(1)
    assert (buffer.delivered, buffer.backlog) == (1, 1)
    buffer.deliver(5)
    assert (buffer.delivered, buffer.backlog) == (2, 0)


def test_an_old_chunk_is_dropped() -> None:
    buffer = filled(4.0, [0.0, 0.0])
    assert buffer.accept(chunk(0, "xx", 0, 1), "v", 1.0) is None
    assert buffer.accept(chunk(1, "x", 1), "v", 1.0) is None
    assert buffer.accepted == 2


@pytest.mark.parametrize(("index", "ids"), [(3, (9,)), (1, (9, 9))])
def test_a_gap_or_an_overlap_is_refused_and_changes_nothing(index: int, ids: tuple[int, ...]) -> None:
    buffer = filled(4.0, [0.0, 0.0])
    with pytest.raises(OutOfOrder, match=f"starts at token {index}, expected 2"):
        buffer.accept(chunk(index, "y", *ids), "v", 1.0)
    assert buffer.handoff("v") == filled(4.0, [0.0, 0.0]).handoff("v")
    assert buffer.arrivals == [0.0, 0.0]


def test_an_open_character_is_accepted_but_not_releasable() -> None:
    buffer = TokenBuffer(4.0)
    buffer.accept(chunk(0, "a", 1), "v", 0.0)
    assert buffer.accept(chunk(1, "", 2, open_tokens=1), "v", 1.0) == Release(1, 0, "")
    assert (buffer.accepted, buffer.releasable) == (2, 1)
    assert buffer.accept(chunk(2, "é", 3), "v", 2.0) == Release(1, 2, "é")
    assert buffer.arrivals == [0.0, 2.0, 2.0]


def test_what_is_shown_stays_shown_whatever_an_endpoint_calls_open() -> None:
    buffer = TokenBuffer(4.0)
    buffer.accept(chunk(0, "abc", 1, 2, 3), "v", 0.0)
    assert buffer.accept(chunk(3, "", 4, open_tokens=3), "v", 0.0) == Release(3, 0, "")
    buffer.roll_back()
    assert (buffer.accepted, buffer.releasable) == (3, 3)
    held = TokenBuffer(4.0, ("END",))
    held.accept(chunk(0, "E", 1), "v", 0.0)
    assert held.accept(chunk(1, "eEN", 2, open_tokens=2), "v", 0.0) == Release(0, 1, "Ee")
    assert held.finish(1.0) == Release(1, 1, "EN")
    assert held.arrivals == [0.0, 1.0]


def test_a_token_without_text_is_releasable_at_once() -> None:
    buffer = TokenBuffer(4.0)
    assert buffer.accept(chunk(0, "", 1), "v", 0.0) == Release(0, 1, "")


def test_a_possible_stop_string_holds_its_tokens_back() -> None:
    buffer = TokenBuffer(4.0, ("END",))
    assert buffer.accept(chunk(0, "aE", 1), "v", 0.0) == Release(0, 0, "a")
    assert buffer.accept(chunk(1, "N", 2), "v", 1.0) == Release(0, 0, "")
    assert (buffer.accepted, buffer.releasable) == (2, 0)
    assert buffer.accept(chunk(2, "o", 3), "v", 2.0) == Release(0, 3, "ENo")
    assert not buffer.stopped


def test_after_a_stop_string_the_tokens_up_to_it_count_and_its_text_is_gone() -> None:
    buffer = TokenBuffer(4.0, ("END",))
    buffer.accept(chunk(0, "aE", 1), "v", 0.0)
    assert buffer.accept(chunk(1, "NDb", 2), "v", 1.0) == Release(0, 0, "")
    assert buffer.stopped
    assert buffer.finish(1.0) == Release(0, 2, "")
    assert buffer.accepted == buffer.releasable == len(buffer.arrivals) == 2


def test_the_end_releases_what_was_held() -> None:
    buffer = TokenBuffer(4.0, ("END",))
    buffer.accept(chunk(0, "aE", 1), "v", 0.0)
    buffer.accept(chunk(1, "", 2, open_tokens=1), "v", 1.0)
    assert buffer.finish(2.0) == Release(0, 2, "E")
    assert buffer.arrivals == [2.0, 2.0]
    assert buffer.finish(3.0) == Release(2, 0, "")


# --- handoffs -------------------------------------------------------------------------------------------------------


def test_ids_travel_packed_between_equal_vocabularies() -> None:
    buffer = TokenBuffer(4.0)
    buffer.accept(chunk(0, "ab", 70_000, 2), "v", 0.0)
    handoff = buffer.handoff("v")
    assert handoff.token_ids == (70_000, 2)
    assert (handoff.text, handoff.next_index, len(handoff.packed_ids or b"")) == ("ab", 2, 8)


@pytest.mark.parametrize(("wrote", "reads"), [("v", "w"), ("v", None), (None, None), (None, "v")])
def test_text_travels_between_other_vocabularies(wrote: str | None, reads: str | None) -> None:
    buffer = TokenBuffer(4.0)
    buffer.accept(chunk(0, "ab", 1, 2), wrote, 0.0)
    assert buffer.handoff(reads) == Handoff("ab", 2)
    assert buffer.handoff(reads).token_ids is None


@pytest.mark.parametrize("second", [("w", (3,)), ("v", ()), (None, (3,))])
def test_a_stream_of_mixed_vocabularies_travels_as_text(second: tuple[str | None, tuple[int, ...]]) -> None:
    vocabulary, ids = second
    buffer = TokenBuffer(4.0)
    buffer.accept(chunk(0, "ab", 1, 2), "v", 0.0)
    buffer.accept(chunk(2, "c", *ids), vocabulary, 0.0)
    buffer.accept(chunk(3, "d", 4), "v", 0.0)
    assert buffer.handoff("v") == Handoff("abcd", 4)
    assert buffer.handoff("w") == Handoff("abcd", 4)


def test_a_chunk_without_all_its_ids_ends_the_handoff_by_ids() -> None:
    buffer = TokenBuffer(4.0)
    buffer.accept(TokenChunk(0, "ab", (1,), 2), "v", 0.0)
    assert buffer.handoff("v") == Handoff("ab", 2)


def test_open_tokens_travel_by_ids_and_stay_behind_by_text() -> None:
    buffer = TokenBuffer(4.0)
    buffer.accept(chunk(0, "a", 1), "v", 0.0)
    buffer.accept(chunk(1, "", 2, 3, open_tokens=2), "v", 0.0)
    assert buffer.handoff("v").token_ids == (1, 2, 3)
    assert buffer.handoff("w") == Handoff("a", 1)


def test_a_roll_back_forgets_exactly_the_open_tokens() -> None:
    buffer = TokenBuffer(4.0)
    buffer.accept(chunk(0, "a", 1), "v", 0.0)
    buffer.accept(chunk(1, "", 2, 3, open_tokens=2), "v", 0.0)
    buffer.roll_back()
    assert (buffer.accepted, buffer.releasable, buffer.open_tokens) == (1, 1, 0)
    assert buffer.handoff("v").token_ids == (1,)
    buffer.roll_back()
    assert buffer.accepted == 1
    assert buffer.accept(chunk(1, "b", 7), "v", 1.0) == Release(1, 1, "b")
    assert buffer.handoff("v").token_ids == (1, 7)


def test_a_roll_back_of_a_token_that_also_showed_something_leaves_no_ids() -> None:
    """One token may hold the end of the text and the beginning of a character: its text stays, its id does not."""
    buffer = TokenBuffer(4.0)
    buffer.accept(chunk(0, "a", 1), "v", 0.0)
    assert buffer.accept(chunk(1, " ", 2, open_tokens=1), "v", 0.0) == Release(1, 0, " ")
    buffer.accept(chunk(2, "", 3, open_tokens=2), "v", 0.0)
    assert buffer.handoff("v").token_ids == (1, 2, 3)
    assert buffer.handoff("w") == Handoff("a ", 1)
    buffer.roll_back()
    assert buffer.handoff("v") == Handoff("a ", 1)
    assert buffer.accept(chunk(1, "🙂", 4), "v", 1.0) == Release(1, 1, "🙂")
    assert buffer.handoff("v") == Handoff("a 🙂", 2)


def test_a_character_that_begins_after_it_keeps_the_ids() -> None:
    buffer = TokenBuffer(4.0)
    buffer.accept(chunk(0, " ", 1, open_tokens=1), "v", 0.0)
    buffer.accept(chunk(1, "🙂", 2), "v", 0.0)
    buffer.accept(chunk(2, "", 3, open_tokens=1), "v", 0.0)
    buffer.roll_back()
    assert buffer.handoff("v").token_ids == (1, 2)


def test_a_roll_back_of_everything_takes_the_next_leg_s_vocabulary() -> None:
    buffer = TokenBuffer(4.0)
    buffer.accept(chunk(0, "", 1, open_tokens=1), "v", 0.0)
    buffer.roll_back()
    buffer.accept(chunk(0, "b", 7), "w", 1.0)
    assert buffer.handoff("w").token_ids == (7,)
    assert buffer.handoff("v") == Handoff("b", 1)


def test_a_roll_back_without_ids() -> None:
    buffer = TokenBuffer(4.0)
    buffer.accept(chunk(0, "a"), None, 0.0)
    buffer.accept(chunk(1, "", open_tokens=1), None, 0.0)
    buffer.roll_back()
    assert buffer.handoff(None) == Handoff("a", 1)


def test_held_text_travels_too() -> None:
    buffer = TokenBuffer(4.0, ("END",))
    buffer.accept(chunk(0, "aEN", 1), "v", 0.0)
    assert buffer.handoff("w") == Handoff("aEN", 1)
    buffer.accept(chunk(1, "D", 9), "w", 0.0)
    assert buffer.stopped


# --- the reader -----------------------------------------------------------------------------------------------------


def test_the_reader_catches_up() -> None:
    """read = min(accepted, 1 + floor((now - a_1) r_c))."""
    buffer = filled(4.0, [10.0] * 6)
    assert [buffer.read(10.0 + s) for s in (0.0, 0.24, 0.25, 0.5, 1.25, 9.0)] == [1, 1, 2, 3, 6, 6]
    assert [buffer.lead(10.0 + s) for s in (0.0, 0.24, 0.25, 0.5, 1.25, 9.0)] == [5, 5, 4, 3, 0, 0]


def test_the_lead_counts_releasable_tokens_only() -> None:
    buffer = filled(4.0, [10.0] * 3)
    buffer.accept(chunk(3, "", 1, open_tokens=1), "v", 10.0)
    assert buffer.lead(10.0) == 2
    assert buffer.lead(99.0) == 0


def test_the_lead_runs_dry_when_the_next_token_is_due() -> None:
    buffer = filled(4.0, [10.0] * 6)
    assert buffer.runs_dry_at() == 11.5 == buffer.due_at(6)
    assert [buffer.due_at(i) for i in (0, 1, 5)] == [10.0, 10.25, 11.25]


def test_an_unknown_reader_has_read_everything() -> None:
    buffer = filled(None, [10.0] * 6)
    assert (buffer.read(10.0), buffer.lead(10.0), buffer.runs_dry_at(), buffer.due_at(3)) == (6, 0, None, None)


def test_nothing_is_due_before_the_first_token() -> None:
    buffer = TokenBuffer(4.0)
    assert (buffer.read(10.0), buffer.lead(10.0), buffer.runs_dry_at(), buffer.due_at(0)) == (0, 0, None, None)
