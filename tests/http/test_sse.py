from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.sse import ChunkWriter, Envelope, json_bytes, whole_body
from serve_app.streams import Delta, Outcome, Usage

Kind = Literal["chat", "completion"]
KINDS: list[Kind] = ["chat", "completion"]
LINE_BREAKS = "\r\n\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"

texts = st.text(st.characters() | st.sampled_from(LINE_BREAKS), min_size=1)
names = st.text(st.characters(codec="utf-8") | st.sampled_from(LINE_BREAKS + '"\\'))
reports = st.dictionaries(names, st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | names)


def naive(
    envelope: Envelope,
    pieces: list[str],
    outcome: Outcome,
    include_usage: bool,
    report: bool,
) -> list[dict[str, Any]]:
    """The chunks as dicts, written down as plainly as can be."""
    chat = envelope.kind == "chat"
    head = {
        "id": envelope.id,
        "object": "chat.completion.chunk" if chat else "text_completion",
        "created": envelope.created,
        "model": envelope.model,
    }
    chunks: list[dict[str, Any]] = []
    for rank, text in enumerate(pieces):
        role = {"role": "assistant"} if rank == 0 else {}
        body = {"delta": role | {"content": text}} if chat else {"text": text}
        chunks.append(head | {"choices": [{"index": 0, "logprobs": None, "finish_reason": None} | body]})
        if report:
            chunks[-1]["disco"] = {"endpoint": "phone"}
    empty: dict[str, Any] = {} if pieces else {"role": "assistant", "content": ""}
    body = {"delta": empty} if chat else {"text": ""}
    chunks.append(head | {"choices": [{"index": 0, "logprobs": None, "finish_reason": outcome.finish_reason} | body]})
    if include_usage:
        for chunk in chunks:
            chunk["usage"] = None
        usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
        chunks.append(head | {"choices": [], "usage": usage})
    if report:
        chunks[-1]["disco"] = outcome.report
    return chunks


@given(st.sampled_from(KINDS), names, st.lists(texts, max_size=4), reports, st.booleans(), st.booleans())
def test_a_stream_parses_to_the_same_as_naive_json(
    kind: Kind, model: str, pieces: list[str], report_body: dict[str, Any], include_usage: bool, report: bool
) -> None:
    envelope = Envelope(kind, "chatcmpl-1", model, 1_700_000_000)
    outcome = Outcome("stop", Usage(3, 4, True), report_body)
    writer = ChunkWriter(envelope, include_usage=include_usage, report=report)

    raw = b"".join([writer.delta(Delta(i, 1, text, "phone")) for i, text in enumerate(pieces)] + [writer.end(outcome)])

    # str.splitlines breaks at every character that any client might take for a line's end.
    lines = raw.decode().splitlines()
    assert all(line.startswith(("id: ", "data: ")) or not line for line in lines)
    *data, done = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert done == "[DONE]"
    assert [json.loads(chunk) for chunk in data] == naive(envelope, pieces, outcome, include_usage, report)


@pytest.mark.parametrize("kind", KINDS)
def test_an_events_id_counts_the_tokens_shown(kind: Kind) -> None:
    writer = ChunkWriter(Envelope(kind, "i", "m", 1), include_usage=True, report=False)

    raw = writer.delta(Delta(0, 2, "a")) + writer.delta(Delta(2, 3, "b")) + writer.error({"error": {}})
    raw += writer.end(Outcome("length", Usage(1, 5, True), {}))

    ids = [line for line in raw.decode().split("\n") if line.startswith("id: ")]
    assert ids == ["id: 2", "id: 5", "id: 5", "id: 5", "id: 5", "id: 5"]


@given(st.text(st.characters(categories=["Cs", "Lu"])))
def test_halves_of_surrogate_pairs_survive_as_escapes(text: str) -> None:
    assert json.loads(json_bytes(text).decode()) == json.loads(json.dumps(text))


def test_whole_bodies_have_openais_shape() -> None:
    outcome = Outcome("length", Usage(3, 4, True), {"policy": "p"})
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}

    assert whole_body(Envelope("chat", "chatcmpl-1", "disco", 9), "Hi", outcome, report=False) == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 9,
        "model": "disco",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hi", "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
            }
        ],
        "usage": usage,
    }
    assert whole_body(Envelope("completion", "cmpl-1", "disco", 9), "Hi", outcome, report=True) == {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 9,
        "model": "disco",
        "choices": [{"index": 0, "text": "Hi", "logprobs": None, "finish_reason": "length"}],
        "usage": usage,
        "disco": {"policy": "p"},
    }
