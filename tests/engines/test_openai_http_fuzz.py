"""Whatever a server sends: it is read as text that keeps the contract of a stream, or it is a failure of one kind."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from actors.contract import StreamContract
from actors.engines.openai_http_answer import Answer
from actors.engines.openai_http_chunks import read_event, read_stray
from actors.engines.openai_http_errors import Failed
from actors.engines.openai_http_sse import EventParser, EventTooLong
from serve_app.core.errors import EndpointFault
from serve_app.core.model import Receipt
from tests.support.effort import examples

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)


def likely(value: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(value, value, value, ANYTHING)


TEXT = likely(st.text(st.sampled_from("ab é漢👩\ud83d\udc67\n"), max_size=4))
CHOICE = st.fixed_dictionaries(
    {},
    optional={
        "index": likely(st.integers(0, 1)),
        "delta": likely(st.fixed_dictionaries({}, optional={"content": TEXT, "reasoning_content": TEXT})),
        "text": TEXT,
        "token_ids": likely(st.lists(st.integers(0, 9), max_size=3)),
        "finish_reason": likely(st.sampled_from([None, "", "stop", "length", "tool_calls", "error", "unheard of"])),
    },
)
USAGE = st.fixed_dictionaries(
    {}, optional={name: likely(st.integers(0, 30)) for name in ("prompt_tokens", "completion_tokens")}
)
CHUNK = st.fixed_dictionaries(
    {}, optional={"choices": likely(st.lists(likely(CHOICE), max_size=2)), "usage": likely(USAGE)}
)
COMPLAINT = st.fixed_dictionaries({"error": ANYTHING})
LINE = st.one_of(
    *[likely(CHUNK).map(lambda chunk: f"data: {json.dumps(chunk)}")] * 4,
    COMPLAINT.map(lambda error: f"data: {json.dumps(error)}"),
    ANYTHING.map(json.dumps),
    st.sampled_from(["data: [DONE]", "data: {", "data:", "event: error", ": ping", "id: 7"]),
    st.text(max_size=8),
)
BYTES = st.lists(LINE.map(lambda line: line.encode("utf-8", "surrogatepass") + b"\n\n"), max_size=8) | st.lists(
    st.binary(max_size=20), max_size=4
)


@settings(max_examples=examples(200, 6000))
@given(BYTES, st.integers(1, 6), st.booleans())
def test_whatever_a_server_sends_is_a_stream_or_a_failure(pieces: list[bytes], most: int, exact: bool) -> None:
    parser, answer, contract = EventParser(), Answer(3, most, exact=exact), StreamContract(3)
    contract.check(Receipt(1))
    tokens = 0
    with suppress(Failed, EventTooLong, EndpointFault):
        events = [event for piece in pieces for event in parser.feed(piece)] + parser.close()
        for event in events:
            piece = read_event(event, "messages")
            if piece is None:
                break
            chunk = answer.feed(piece)
            if chunk is not None:
                chunk.text.encode()
                contract.check(chunk)
                tokens += chunk.count
        if parser.stray is not None and (failed := read_stray(parser.stray, "messages")):
            raise failed
        last = answer.end()
        last.text.encode()
        contract.check(last)
        contract.close()
        if not exact:
            assert tokens + last.count <= most
