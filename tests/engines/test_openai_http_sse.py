from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from actors.engines.openai_http_sse import MOST_BYTES, EventParser, EventTooLong, ServerEvent
from tests.support.effort import examples

DATA = ServerEvent


def parse(*pieces: bytes) -> list[ServerEvent]:
    parser = EventParser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events + parser.close()


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([b"data: a", b""], [DATA("a")]),
        ([b"data:a", b""], [DATA("a")]),
        ([b"data:  a ", b""], [DATA(" a ")]),
        ([b"data: a", b"data: b", b""], [DATA("a\nb")]),
        ([b"data", b""], [DATA("")]),
        ([b"data", b"data", b""], [DATA("\n")]),
        ([b"data: a:b", b""], [DATA("a:b")]),
        ([b": a comment", b"data: a", b":", b""], [DATA("a")]),
        ([b": only a comment", b"", b"", b"data: a", b""], [DATA("a")]),
        ([b"event: error", b"data: a", b"", b"data: b", b""], [DATA("a", "error"), DATA("b")]),
        ([b"event: error", b"", b"data: b", b""], [DATA("b")]),
        ([b"id: 7", b"retry: 10", b"unheard of", b"data: a", b""], [DATA("a", id="7")]),
        ([b"id: 7", b"data: a", b"", b"data: b", b""], [DATA("a", id="7"), DATA("b")]),
        ([b" data: a", b""], []),
        (["data: 漢é👩‍👧".encode(), b""], [DATA("漢é👩‍👧")]),
        ([b"data: \xff", b""], [DATA("\N{REPLACEMENT CHARACTER}")]),
        ([b"data: a", b"", b"data: [DONE]"], [DATA("a"), DATA("[DONE]")]),
        ([b"data: a", b"", b": left"], [DATA("a")]),
    ],
)
def test_the_rules_of_the_standard_under_every_line_end(
    end: bytes, lines: list[bytes], expected: list[ServerEvent]
) -> None:
    assert parse(b"".join(line + end for line in lines)) == expected


def test_a_line_feed_after_a_carriage_return_ends_no_second_line() -> None:
    assert parse(b"data: a\r", b"\ndata: b\r\n\r", b"\ndata: c") == [DATA("a\nb"), DATA("c")]


def test_an_event_is_given_with_its_last_byte() -> None:
    parser = EventParser()
    assert parser.feed(b"data: a\r\n") == []
    assert parser.feed(b"\r") == [DATA("a")]


@pytest.mark.parametrize("rest", [b"data: a", b"data: a\n", b"data: a\r"])
def test_the_last_event_may_lack_its_blank_line(rest: bytes) -> None:
    assert parse(rest) == [DATA("a")]


def test_only_the_first_byte_order_mark_is_none_of_the_text() -> None:
    assert parse(b"\xef", b"\xbb", b"\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n") == [DATA("a")]
    assert parse(b"\xef\xbbdata: a\n\n") == []


def test_an_object_instead_of_a_field_is_kept_aside() -> None:
    parser = EventParser()
    assert parser.feed(b'{"error": {"code": 500}}\n') == []
    assert parser.close() == []
    assert parser.stray == '{"error": {"code": 500}}'


@pytest.mark.parametrize("endless", [b"data: aaaaaaa", b"data: aaaaaaa\n"])
def test_an_event_without_an_end_is_cut_off(endless: bytes) -> None:
    parser = EventParser()
    parser.feed(endless * (MOST_BYTES // len(endless)))
    with pytest.raises(EventTooLong):
        parser.feed(endless * 2)


def test_any_number_of_events_may_come() -> None:
    parser = EventParser()
    block = b"data: " + b"a" * 1000 + b"\n\n"
    assert sum(len(parser.feed(block * 100)) for _ in range(20)) == 2000


FIELDS = st.sampled_from(["data", "data: ", "data:", "event: ", ": ", "id: ", "x", "", "\ufeff"])
LINES = st.tuples(FIELDS, st.text(st.sampled_from("aé漢👧:\ufeff "), max_size=4)).map("".join)
BODIES = st.lists(st.tuples(LINES, st.sampled_from(["\n", "\r", "\r\n", "\n\n", "\r\r", "\r\n\r\n"])), max_size=12).map(
    lambda lines: "".join(line + end for line, end in lines).encode()
)


@settings(max_examples=examples(100, 5000))
@given(BODIES, st.data())
@example(b"data: a\r\n\r\n", None)
def test_events_do_not_depend_on_where_the_bytes_were_cut(body: bytes, data: st.DataObject | None) -> None:
    whole = parse(body)
    assert parse(*(body[at : at + 1] for at in range(len(body)))) == whole
    if data is not None:
        cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=6)))
        assert parse(*(body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True))) == whole
