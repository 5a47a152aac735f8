"""What a refusal of a body says: the field, and what is expected there, in no library's words."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from serve_app.body import ChatBody, ChatMessage, DiscoOptions, StreamOptions
from serve_app.core.errors import InvalidRequest
from serve_app.schema import ParsedRequest, parse_chat
from serve_app.settings import LiveSettings
from tests.http.fakes import body

LIVE = LiveSettings()


def chat(**fields: Any) -> ParsedRequest:
    return parse_chat(json.dumps(body(**fields)).encode(), "r1", {}, LIVE)


def refused(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        chat(**fields)
    return caught.value


#: A value of each JSON type, and what it is no example of.
OF_TYPES: dict[str, Any] = {
    "text": "text",
    "a whole number": 1,
    "a fraction": 1.5,
    "a boolean": True,
    "null": None,
    "an array": [[]],
    "an object": {"odd": 1},
}
#: Each field that has a type of its own, the types it takes, and what it says of all others.
TYPED: dict[str, tuple[set[str], str]] = {
    "model": ({"text"}, "must be a string"),
    "user": ({"text", "null"}, "must be a string"),
    "max_tokens": ({"a whole number", "null"}, "must be a whole number"),
    "max_completion_tokens": ({"a whole number", "null"}, "must be a whole number"),
    "seed": ({"a whole number", "null"}, "must be a whole number"),
    "temperature": ({"a whole number", "a fraction", "null"}, "must be a number"),
    "top_p": ({"a whole number", "null"}, "must be a number|must be at most 1"),
    "presence_penalty": ({"a whole number", "a fraction", "null"}, "must be a number"),
    "frequency_penalty": ({"a whole number", "a fraction", "null"}, "must be a number"),
    "stop": ({"text", "null"}, "must be a string or an array of strings"),
    "stream": ({"a boolean", "null"}, "must be true or false"),
    "stream_options": ({"an object", "null"}, 'must be an object, such as {"include_usage": true}'),
    "stream_options.include_usage": ({"a boolean", "null"}, "must be true or false"),
    "continue_final_message": ({"null"}, "must be true or false|the last message must be the assistant's"),
    "add_generation_prompt": ({"a boolean", "null"}, "must be true or false"),
    "messages": (set(), "must be an array, such as {"),
    "messages[0]": (set(), 'must be an object, such as {"role": "user", "content": "..."}'),
    "messages[0].role": (set(), "must be one of 'system', 'developer', 'user'"),
    "messages[0].content": ({"text"}, "must be a string or a non-empty array of parts"),
    "messages[0].content[0]": (set(), 'must be an object, such as {"type": "text", "text": "..."}'),
    "messages[0].content[0].text": ({"text"}, "must be a string"),
    "disco": ({"null"}, 'must be an object, such as {"report": true}'),
    "disco.report": ({"a boolean"}, "must be true or false"),
    "disco.events": ({"a boolean"}, "must be true or false"),
    "disco.consumption_rate": ({"a whole number", "a fraction", "null"}, "must be a number"),
    "disco.delivery": ({"null"}, "must be one of 'eager' or 'paced'"),
    "disco.pin": ({"null"}, "must be one of 'device_only' or 'cloud_only'"),
    "disco.endpoints": ({"null"}, 'must be an array, such as ["phone"]'),
    "disco.migrate": ({"a boolean"}, "must be true or false"),
}


def holding(path: str, value: Any) -> dict[str, Any]:
    """A request that would be accepted, but for ``value`` at ``path``."""
    document = body(stream=True, disco={}, messages=[{"role": "user", "content": [{"type": "text", "text": "Hi"}]}])
    document |= {"stream_options": {}} if path.startswith("stream_options.") else {}
    steps = [int(step) if step.isdecimal() else step for step in path.replace("[", ".").replace("]", "").split(".")]
    place: Any = document
    for step in steps[:-1]:
        place = place[step]
    place[steps[-1]] = value
    return document


def test_every_typed_field_is_in_the_table() -> None:
    inner = {"messages[0]": ChatMessage, "stream_options": StreamOptions, "disco": DiscoOptions}
    names = {*ChatBody.model_fields} | {f"{path}.{n}" for path, part in inner.items() for n in part.model_fields}
    assert names <= TYPED.keys()


@pytest.mark.parametrize("kind", OF_TYPES)
@pytest.mark.parametrize("path", TYPED)
def test_a_value_of_the_wrong_type_is_told_what_is_expected(path: str, kind: str) -> None:
    fitting, expected = TYPED[path]
    document = holding(path, OF_TYPES[kind])
    if kind in fitting:
        chat(**document)
        return
    error = refused(**document)
    inside = error.param is not None and error.param.startswith(path)
    assert inside, f"{path} is refused as {error.param}"
    if error.param == path:
        assert any(error.message.startswith(f"{path}: {one}") for one in expected.split("|")), error.message
    assert not re.search(r"Input|instance|valid dictionary|[A-Z][a-z]+[A-Z]", error.message), "pydantic's own words"


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "the body is empty; send a JSON object with the request's fields"),
        (b" \n", "the body is empty; send a JSON object with the request's fields"),
        (
            b"nonsense",
            "the body is not valid JSON (line 1 column 2); send a JSON object in UTF-8, without NaN or Infinity",
        ),
        (b"[{}]", 'the body must be a JSON object with the request\'s fields, such as {"model": ...}'),
        (b'{"model": 1}', "model: must be a string"),
    ],
)
def test_a_body_that_is_none_is_told_what_to_send(raw: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_chat(raw, "r1", {}, LIVE)
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": -1}, "temperature: must be at least 0"),
        ({"temperature": 2.5}, "temperature: must be at most 2"),
        ({"seed": 2**63}, "seed: must be less than 9223372036854775808"),
        ({"disco": {"consumption_rate": 0.1}}, "disco.consumption_rate: must be at least 0.5"),
    ],
)
def test_limits_are_told(fields: dict[str, Any], message: str) -> None:
    assert refused(**fields).message == message
