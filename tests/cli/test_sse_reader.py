"""Events out of bytes, whatever the pieces."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from serve_app.cli.sse import EventReader

STREAM = 'id: 1\ndata: {"a":"grün 🦜"}\n\n: a comment\n\nevent: x\ndata:two\ndata: lines\n\ndata: [DONE]\n\n'.encode()
EVENTS = ['{"a":"grün 🦜"}', "two\nlines", "[DONE]"]


def fed(pieces: list[bytes]) -> list[str]:
    reader = EventReader()
    return [event for piece in pieces for event in reader.feed(piece)]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12), st.booleans())
def test_any_split_gives_the_same_events(cuts: list[int], crlf: bool) -> None:
    stream = STREAM.replace(b"\n", b"\r\n") if crlf else STREAM
    edges = [0, *sorted(cuts), len(stream)]
    assert fed([stream[a:b] for a, b in pairwise(edges)]) == EVENTS


def test_every_single_byte_may_come_alone() -> None:
    assert fed([STREAM[i : i + 1] for i in range(len(STREAM))]) == EVENTS


def test_an_event_is_given_only_when_it_is_whole() -> None:
    reader = EventReader()
    assert reader.feed(b"data: one\n") == []
    assert reader.feed(b"\ndata: t") == ["one"]
    assert reader.feed(b"wo\n\n") == ["two"]


def test_only_the_first_space_belongs_to_the_field() -> None:
    assert fed([b"data:  x \n\n"]) == [" x "]


def test_an_empty_data_line_is_an_event_and_an_event_without_data_is_none() -> None:
    assert fed([b"data:\n\nid: 7\n\n\n"]) == [""]


def test_bytes_that_are_not_utf8_do_not_end_the_stream() -> None:
    assert fed([b"data: \xff!\n\ndata: on\n\n"]) == ["�!", "on"]
