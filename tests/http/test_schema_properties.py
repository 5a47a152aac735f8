"""Whatever JSON stands in whatever field: a request within the limits, or an InvalidRequest that quotes nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.core.errors import InvalidRequest
from serve_app.core.model import ChatPrompt, TextPrompt, TokenPrompt
from serve_app.schema import ParsedRequest, parse_chat, parse_completion
from serve_app.settings import LiveSettings
from tests.http.fakes import CANARY, CHAT, COMPLETIONS, body

Parse = Callable[..., ParsedRequest]

LIVE = LiveSettings.model_validate(
    {
        "limits": {"max_tokens": 64, "default_max_tokens": 32},
        "migration": {"mode": "off"},
        "reader": {"delivery": "paced"},
    }
)
FIELDS = [
    "model", "messages", "prompt", "max_tokens", "max_completion_tokens", "temperature", "top_p", "seed",
    "presence_penalty", "frequency_penalty", "stop", "n", "user", "stream", "stream_options", "disco",
    "continue_final_message", "add_generation_prompt", "echo", "suffix", "best_of", "logprobs", "top_logprobs",
    "logit_bias", "tools", "tool_choice", "functions", "function_call", "parallel_tool_calls", "response_format",
    "modalities", "audio", "prediction", "web_search_options", "store", "metadata", "service_tier",
    "reasoning_effort", "verbosity", "unknown", "",
]  # fmt: skip
TEXTS = st.sampled_from([CANARY, "a", "", "é漢", "👩‍👩‍👧", "\ud800", "5", "true"]) | st.text(max_size=5)
NUMBERS = (
    st.sampled_from([0, -0.0, 1, 1.0, -1, 2, 64, 65, 2**31, 2**63, -(2**63) - 1, 10**400, -(10**400)])
    | st.integers()
    | st.floats()
)
SCALARS = st.none() | st.booleans() | NUMBERS | TEXTS
#: Keys that some object here has; a canary may stand in any value, whereas a key is a name and may be repeated.
KEYS = st.sampled_from(
    ["role", "content", "type", "text", "name", "tool_calls", "audio", "report", "pin", "delivery", "migrate",
     "consumption_rate", "include_usage", "include_obfuscation", "x"]
)  # fmt: skip
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)
ROLES = st.sampled_from(["system", "developer", "user", "assistant"]) | st.sampled_from(["tool", "function", CANARY])
PARTS = st.fixed_dictionaries({"type": st.sampled_from(["text", "text", "image_url", CANARY]), "text": TEXTS})
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": ROLES, "content": TEXTS | st.lists(PARTS, max_size=3) | VALUES}), max_size=3
)
CONVERSATIONS = st.builds(
    lambda question, answer: [{"role": "user", "content": question}, {"role": "assistant", "content": answer}],
    st.sampled_from(["a", "é漢"]),
    TEXTS | st.lists(PARTS, max_size=2),
)
DISCO = st.fixed_dictionaries(
    {},
    optional={
        "report": st.booleans(),
        "consumption_rate": st.none() | NUMBERS | st.floats(0.5, 200),
        "delivery": st.sampled_from(["eager", "paced", CANARY]),
        "pin": st.sampled_from(["device_only", "cloud_only", None, CANARY]),
        "migrate": st.booleans(),
    },
)
#: Values near the accepted ones, so that some requests get through.
LIKELY = st.fixed_dictionaries(
    {},
    optional={
        "model": TEXTS,
        "messages": MESSAGES | CONVERSATIONS,
        "prompt": TEXTS | st.lists(TEXTS | st.integers(0, 9), max_size=3) | st.lists(st.lists(NUMBERS), max_size=2),
        "disco": DISCO,
        "stop": TEXTS | st.lists(TEXTS, max_size=5),
        "max_tokens": st.integers(-1, 70),
        "continue_final_message": st.booleans(),
        "stream": st.booleans(),
        "stream_options": st.fixed_dictionaries({"include_usage": st.booleans()}),
    },
)
BOTH = pytest.mark.parametrize(("parse", "path"), [(parse_chat, CHAT), (parse_completion, COMPLETIONS)])


def parsed(parse: Parse, document: Any) -> ParsedRequest | None:
    """None where it was refused as it should be: any other exception fails the test."""
    try:
        return parse(json.dumps(document).encode(), "r1", {"traceparent": "00-x"}, LIVE)
    except InvalidRequest as error:
        refusal = error
    assert refusal.message
    assert CANARY not in f"{refusal.message} {refusal.param}"
    assert refusal.__cause__ is None
    assert refusal.param is None or refusal.param in refusal.message
    return None


def check(request: ParsedRequest | None, continued: bool = False) -> None:
    """Engines rely on each of these without looking again."""
    if request is None:
        return
    client, sampling = request.client, request.client.sampling
    assert client.model
    assert (client.request_id, client.trace) == ("r1", {"traceparent": "00-x"})
    assert 1 <= sampling.max_tokens <= LIVE.limits.max_tokens
    assert 0 <= sampling.temperature <= 2
    assert 0 < sampling.top_p <= 1
    assert -2 <= sampling.presence_penalty <= 2
    assert -2 <= sampling.frequency_penalty <= 2
    assert sampling.seed is None or -(2**63) <= sampling.seed < 2**63
    assert not isinstance(sampling.max_tokens, bool)
    assert not isinstance(sampling.seed, bool)
    assert len(client.stop) <= 4
    assert all(client.stop)
    assert client.consumption_rate is None or 0.5 <= client.consumption_rate <= 200
    assert (client.migrate, client.delivery) == (False, "paced"), "the operator forbade the one and ordered the other"
    assert request.stream or not request.include_usage
    assert all(re.fullmatch(r"[A-Za-z0-9_.?-]{1,80}", name) for name in request.ignored)
    match client.prompt:
        case ChatPrompt(messages, prefix):
            assert messages
            assert bool(prefix) == continued
            assert {message.role for message in messages} <= {"system", "user", "assistant"}
            texts = [prefix, *(message.content for message in messages)]
        case TextPrompt(text):
            assert text
            texts = [text]
        case TokenPrompt(ids):
            assert ids
            assert all(type(token) is int and 0 <= token < 2**31 for token in ids)
            texts = []
    for text in [client.model, *client.stop, *texts]:
        text.encode()


@BOTH
@settings(max_examples=400, deadline=None, derandomize=True)
@given(fields=st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=3))
def test_any_value_in_any_field(parse: Parse, path: str, fields: dict[str, Any]) -> None:
    check(parsed(parse, body(path, **fields)), continued=fields.get("continue_final_message") is True)


@BOTH
@settings(max_examples=400, deadline=None, derandomize=True)
@given(fields=LIKELY)
def test_values_near_the_accepted_ones(parse: Parse, path: str, fields: dict[str, Any]) -> None:
    check(parsed(parse, body(path, **fields)), continued=fields.get("continue_final_message", False))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(messages=CONVERSATIONS, more=st.booleans() | st.none())
def test_a_continuation_is_never_empty(messages: list[dict[str, Any]], more: bool | None) -> None:
    fields = {"messages": messages, "continue_final_message": True, "add_generation_prompt": more}
    request = parsed(parse_chat, body(CHAT, **fields))

    check(request, continued=True)
    assert more is not True or request is None


@BOTH
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", [CANARY, [CANARY], {"type": CANARY}, [[CANARY]], [{"role": CANARY}]])
def test_no_refusal_quotes_a_value(parse: Parse, path: str, field: str, value: Any) -> None:
    check(parsed(parse, body(path) | {field: value}))


@BOTH
@settings(max_examples=200, deadline=None, derandomize=True)
@given(raw=st.binary(max_size=60) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_bytes(parse: Parse, path: str, raw: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(raw, "r1", {}, LIVE)
    assert CANARY not in caught.value.message
