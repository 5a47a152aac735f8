from __future__ import annotations

import json
from typing import Any

import pytest

from serve_app.core.errors import InvalidRequest, Unsupported
from serve_app.core.model import ChatPrompt, Message, Pin, Sampling, TextPrompt, TokenPrompt
from serve_app.schema import ParsedRequest, parse_chat, parse_completion
from serve_app.settings import LiveSettings
from tests.http.fakes import CANARY, CHAT, COMPLETIONS, body

LIVE = LiveSettings()
LONG_TEXT = "x" * 300


def chat(live: LiveSettings = LIVE, **fields: Any) -> ParsedRequest:
    return parse_chat(json.dumps(body(CHAT, **fields)).encode(), "r1", {}, live)


def completion(live: LiveSettings = LIVE, **fields: Any) -> ParsedRequest:
    return parse_completion(json.dumps(body(COMPLETIONS, **fields)).encode(), "r1", {}, live)


def refused(parse: Any = chat, **fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    return caught.value


def user(content: Any, role: str = "user", **extra: Any) -> dict[str, Any]:
    return {"role": role, "content": content} | extra


def live(**sections: Any) -> LiveSettings:
    return LiveSettings.model_validate(sections)


# --- what is accepted ---


def test_a_minimal_request_gets_the_operators_defaults() -> None:
    parsed = parse_chat(json.dumps(body()).encode(), "r1", {"traceparent": "00-x"}, LIVE)

    client = parsed.client
    assert (parsed.stream, parsed.include_usage, parsed.report, parsed.ignored) == (False, False, False, ())
    assert client.prompt == ChatPrompt((Message("user", "Hi"),))
    assert client.sampling == Sampling(max_tokens=512)
    assert (client.request_id, client.model, client.stop) == ("r1", "disco", ())
    assert (client.consumption_rate, client.delivery, client.pin, client.migrate) == (4.8, "eager", None, True)
    assert client.trace == {"traceparent": "00-x"}


def test_every_sampling_field_arrives() -> None:
    given = {"temperature": 0, "top_p": 0.9, "seed": -7, "presence_penalty": -2, "frequency_penalty": 1.5}

    assert chat(**given, max_tokens=3).client.sampling == Sampling(3, 0.0, 0.9, -7, -2.0, 1.5)
    assert completion(**given, max_tokens=3).client.sampling == Sampling(3, 0.0, 0.9, -7, -2.0, 1.5)


def test_null_is_the_same_as_absent() -> None:
    fields = ["max_tokens", "max_completion_tokens", "temperature", "top_p", "seed", "stop", "stream", "stream_options",
              "user", "n", "tools", "response_format", "logit_bias", "disco", "presence_penalty"]  # fmt: skip

    assert chat(**dict.fromkeys(fields)) == chat()


def test_a_nucleus_without_mass_is_greedy() -> None:
    assert chat(top_p=0, temperature=1.5).client.sampling == Sampling(512, temperature=0.0, top_p=1.0)


def test_the_limit_has_two_names() -> None:
    assert chat(max_completion_tokens=7).client.sampling.max_tokens == 7
    assert chat(max_tokens=7, max_completion_tokens=7).client.sampling.max_tokens == 7
    assert chat(max_tokens=5).client.sampling.max_tokens == 5


def test_the_default_limit_never_exceeds_the_cap() -> None:
    assert chat(live(limits={"default_max_tokens": 512, "max_tokens": 100})).client.sampling.max_tokens == 100


@pytest.mark.parametrize(
    ("given", "expected"),
    [("END", ("END",)), (["a", "b", "c", "d"], ("a", "b", "c", "d")), ([], ()), (None, ())],
)
def test_stop(given: Any, expected: tuple[str, ...]) -> None:
    assert chat(stop=given).client.stop == expected


def test_text_parts_are_joined_and_developers_are_systems() -> None:
    messages = [
        user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
        user("x", "developer"),
        user("", "assistant", tool_calls=[], refusal=None),
        user("y", "system"),
    ]

    assert chat(messages=messages).client.prompt == ChatPrompt(
        (Message("user", "a\nb"), Message("system", "x"), Message("assistant", ""), Message("system", "y"))
    )


def test_a_trailing_answer_becomes_the_prefix() -> None:
    messages = [user("Count."), user("One, two", "assistant")]

    continued = chat(messages=messages, continue_final_message=True, add_generation_prompt=False)
    assert continued.client.prompt == ChatPrompt((Message("user", "Count."),), "One, two")
    assert chat(messages=messages).client.prompt == ChatPrompt(
        (Message("user", "Count."), Message("assistant", "One, two"))
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("Once", TextPrompt("Once")),
        (["Once"], TextPrompt("Once")),
        ([1, 2], TokenPrompt((1, 2))),
        ([[1, 2]], TokenPrompt((1, 2))),
    ],
)
def test_legacy_prompt_forms(given: Any, expected: Any) -> None:
    assert completion(prompt=given).client.prompt == expected


def test_stream_options() -> None:
    assert chat(stream=True, stream_options={"include_usage": True, "include_obfuscation": False}).include_usage
    assert not chat(stream=True, stream_options={}).include_usage


def test_neutral_values_are_accepted_without_a_word() -> None:
    neutral = {
        "n": 1, "logprobs": False, "top_logprobs": 0, "logit_bias": {}, "tools": [], "tool_choice": "auto",
        "parallel_tool_calls": True, "response_format": {"type": "text"}, "modalities": ["text"], "audio": None,
        "store": False, "service_tier": "auto", "user": "u-1", "metadata": {"a": "b"}, "safety_identifier": "s",
    }  # fmt: skip

    assert chat(**neutral) == chat()
    legacy = {"n": 1, "best_of": 1, "echo": False, "suffix": "", "logprobs": None, "logit_bias": {}, "user": "u-1"}
    assert completion(**legacy) == completion()


def test_unknown_fields_are_ignored_and_named() -> None:
    parsed = chat(
        top_k=5,
        messages=[user("a", name="bob"), user("b", name="eve")],
        stream=True,
        stream_options={"extra": 1},
    )

    assert parsed.ignored == ("top_k", "messages.name", "stream_options.extra")


def test_names_of_ignored_fields_fit_a_header() -> None:
    fields = {"evil\r\nset-cookie: x": 1, "ünï": 1, "z" * 500: 1} | {f"f{i}": 1 for i in range(100)}

    ignored = chat(**fields).ignored
    assert len(ignored) == 16
    assert ignored[:3] == ("evil??set-cookie??x", "?n?", "z" * 64)
    assert chat(**{"": 1}).ignored == ("?",)


# --- the disco object ---


def test_the_disco_object() -> None:
    wishes = {"report": True, "consumption_rate": 12, "delivery": "paced", "pin": "cloud_only", "migrate": False,
              "endpoints": ["a", "b"]}  # fmt: skip

    parsed = chat(disco=wishes)
    client = parsed.client
    assert parsed.report
    assert client.endpoints == ("a", "b")
    assert (client.consumption_rate, client.delivery, client.pin, client.migrate) == (
        12.0,
        "paced",
        Pin.CLOUD_ONLY,
        False,
    )


@pytest.mark.parametrize(("given", "expected"), [({}, 4.8), ({"consumption_rate": None}, None)])
def test_an_unknown_reader_is_not_an_unmentioned_one(given: dict[str, Any], expected: float | None) -> None:
    assert chat(disco=given).client.consumption_rate == expected


def test_wishes_only_narrow_what_the_operator_allows() -> None:
    strict = live(migration={"mode": "off"}, reader={"delivery": "paced"})

    client = chat(strict, disco={"migrate": True, "delivery": "eager"}).client
    assert (client.migrate, client.delivery) == (False, "paced")


# --- what is refused ---

BAD_CHAT: list[tuple[dict[str, Any], str]] = [
    ({"model": 5}, "model"),
    ({"model": None}, "model"),
    ({"model": ""}, "model"),
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": CANARY}, "messages"),
    ({"messages": [CANARY]}, "messages[0]"),
    ({"messages": [{"content": CANARY}]}, "messages[0].role"),
    ({"messages": [user("a"), user("b", CANARY)]}, "messages[1].role"),
    ({"messages": [user(None)]}, "messages[0].content"),
    ({"messages": [user(7)]}, "messages[0].content"),
    ({"messages": [user([])]}, "messages[0].content"),
    ({"messages": [user([CANARY])]}, "messages[0].content[0]"),
    ({"messages": [user([{"type": "text", "text": 5}])]}, "messages[0].content[0].text"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -3}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": 5.5}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_tokens": 10**30}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_tokens": 5, "max_completion_tokens": 7}, "max_tokens"),
    ({"max_completion_tokens": 100_000}, "max_completion_tokens"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": CANARY}, "temperature"),
    ({"temperature": False}, "temperature"),
    ({"top_p": 1.1}, "top_p"),
    ({"seed": 1.5}, "seed"),
    ({"seed": 2**63}, "seed"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": [CANARY]}, "frequency_penalty"),
    ({"stop": ["a"] * 5}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop"),
    ({"stop": LONG_TEXT}, "stop"),
    ({"stop": 5}, "stop"),
    ({"stop": [5]}, "stop"),
    ({"stop": {CANARY: 1}}, "stop"),
    ({"stream": "yes"}, "stream"),
    ({"stream": 1}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": CANARY}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"user": 5}, "user"),
    ({"continue_final_message": True}, "continue_final_message"),
    ({"continue_final_message": True, "messages": [user("a", "assistant")]}, "messages"),
    ({"continue_final_message": True, "messages": [user("a"), user("", "assistant")]}, "continue_final_message"),
    (
        {
            "continue_final_message": True,
            "add_generation_prompt": True,
            "messages": [user("a"), user(CANARY, "assistant")],
        },
        "add_generation_prompt",
    ),
    ({"continue_final_message": CANARY}, "continue_final_message"),
    ({"disco": []}, "disco"),
    ({"disco": {"rate": 1}}, "disco.rate"),
    ({"disco": {f"{CANARY} \n": 1}}, "disco"),
    ({"disco": {"report": "yes"}}, "disco.report"),
    ({"disco": {"consumption_rate": 0.4}}, "disco.consumption_rate"),
    ({"disco": {"consumption_rate": 201}}, "disco.consumption_rate"),
    ({"disco": {"delivery": CANARY}}, "disco.delivery"),
    ({"disco": {"pin": CANARY}}, "disco.pin"),
    ({"disco": {"pin": 1}}, "disco.pin"),
    ({"disco": {"migrate": None}}, "disco.migrate"),
]


@pytest.mark.parametrize(("fields", "param"), BAD_CHAT)
def test_a_bad_chat_body_is_refused_by_the_fields_name(fields: dict[str, Any], param: str) -> None:
    error = refused(**fields)

    assert error.param == param
    assert param in error.message
    assert CANARY not in error.message
    assert not isinstance(error, Unsupported)


UNSUPPORTED_CHAT: list[tuple[dict[str, Any], str]] = [
    ({"n": 2}, "n"),
    ({"n": True}, "n"),
    ({"n": CANARY}, "n"),
    ({"logprobs": True}, "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logit_bias": {"5": 1}}, "logit_bias"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"functions": [{}]}, "functions"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"audio": {"voice": CANARY}}, "audio"),
    ({"store": True}, "store"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"service_tier": "flex"}, "service_tier"),
    ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
    ({"add_generation_prompt": False}, "add_generation_prompt"),
    ({"messages": [user("x", "tool", tool_call_id=CANARY)]}, "messages[0].role"),
    ({"messages": [user(None, "assistant", tool_calls=[{}])]}, "messages[0].tool_calls"),
    ({"messages": [user([{"type": "image_url"}])]}, "messages[0].content[0].type"),
    ({"messages": [user([{"type": CANARY}])]}, "messages[0].content[0].type"),
    ({"messages": [user([{}])]}, "messages[0].content[0].type"),
]


@pytest.mark.parametrize(("fields", "param"), UNSUPPORTED_CHAT)
def test_what_nobody_here_can_do_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    error = refused(**fields)

    assert (type(error), error.param) == (Unsupported, param)
    assert CANARY not in error.message


def test_a_known_kind_of_part_is_named() -> None:
    assert "image_url" in refused(messages=[user([{"type": "image_url"}])]).message


BAD_COMPLETION: list[tuple[dict[str, Any], type[InvalidRequest], str]] = [
    ({"prompt": None}, InvalidRequest, "prompt"),
    ({"prompt": ""}, InvalidRequest, "prompt"),
    ({"prompt": []}, InvalidRequest, "prompt"),
    ({"prompt": [""]}, InvalidRequest, "prompt"),
    ({"prompt": [[]]}, InvalidRequest, "prompt"),
    ({"prompt": {CANARY: 1}}, InvalidRequest, "prompt"),
    ({"prompt": [1, CANARY]}, InvalidRequest, "prompt"),
    ({"prompt": [[1, 2.5]]}, InvalidRequest, "prompt"),
    ({"prompt": [True]}, InvalidRequest, "prompt"),
    ({"prompt": ["a", 1]}, InvalidRequest, "prompt"),
    ({"prompt": [[1], 1]}, InvalidRequest, "prompt"),
    ({"prompt": [["a"]]}, InvalidRequest, "prompt"),
    ({"prompt": [-1]}, InvalidRequest, "prompt"),
    ({"prompt": [2**31]}, InvalidRequest, "prompt"),
    ({"prompt": ["a", "b"]}, Unsupported, "prompt"),
    ({"prompt": [[1], [2]]}, Unsupported, "prompt"),
    ({"echo": True}, Unsupported, "echo"),
    ({"suffix": CANARY}, Unsupported, "suffix"),
    ({"best_of": 2}, Unsupported, "best_of"),
    ({"logprobs": 0}, Unsupported, "logprobs"),
    ({"n": 3}, Unsupported, "n"),
    ({"max_tokens": 0}, InvalidRequest, "max_tokens"),
]


@pytest.mark.parametrize(("fields", "kind", "param"), BAD_COMPLETION)
def test_a_bad_legacy_body_is_refused(fields: dict[str, Any], kind: type[InvalidRequest], param: str) -> None:
    error = refused(completion, **fields)

    assert (type(error), error.param) == (kind, param)
    assert CANARY not in error.message


@pytest.mark.parametrize("missing", ["model", "messages"])
def test_a_missing_field_is_named(missing: str) -> None:
    document = body()
    del document[missing]

    with pytest.raises(InvalidRequest) as caught:
        parse_chat(json.dumps(document).encode(), "r1", {}, LIVE)
    assert caught.value.args == (f"{missing}: this field is required", missing)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"model":"disco","messages":[{"role":"user","content":"\\ud800"}]}',
        b'{"model":"disco","temperature":NaN,"messages":[]}',
        b'{"model":"disco","temperature":-Infinity,"messages":[]}',
        b'{"model":"disco","seed":1' + b"0" * 5000 + b',"messages":[]}',
        b"canary-7f3a",
        b"[]",
        b'"canary-7f3a"',
        b"null",
        b"5",
    ],
)
def test_what_is_no_json_object_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_chat(raw, "r1", {}, LIVE)
    assert CANARY not in caught.value.message


def test_a_number_too_large_for_a_float_is_refused() -> None:
    raw = b'{"model":"disco","temperature":1e999,"messages":[{"role":"user","content":"a"}]}'

    with pytest.raises(InvalidRequest) as caught:
        parse_chat(raw, "r1", {}, LIVE)
    assert caught.value.param == "temperature"
