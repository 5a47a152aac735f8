"""OpenAI's request bodies and the ``disco`` object, translated into a ClientRequest. Pure.

Known fields whose value asks for something nobody here can do are refused by name; fields that nobody knows are
ignored and named in the answer's ``x-disco-ignored`` header.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from pydantic import BaseModel

from serve_app.body import ChatBody, ChatMessage, CompletionBody, DiscoOptions, GenerationBody, read_body
from serve_app.core.errors import InvalidRequest, Unsupported
from serve_app.core.model import ChatPrompt, Message, Prompt, Sampling, TextPrompt, TokenPrompt
from serve_app.fields import whole
from serve_app.settings import LimitSettings, LiveSettings
from serve_app.streams import ClientRequest, Grant

MOST_STOPS = 4
MOST_STOP_CHARACTERS = 256
_MOST_IGNORED = 16
_MOST_NAME_CHARACTERS = 64
MOST_TOKEN_ID = 2**31 - 1

#: Fields that are known and have no effect here. The values listed, and null, ask for nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "logit_bias": ({},),
    "service_tier": ("auto", "default"),
}
NEUTRAL_CHAT: dict[str, tuple[Any, ...]] = _NEUTRAL | {
    "logprobs": (False,),
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "store": (False,),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
}
NEUTRAL_COMPLETION: dict[str, tuple[Any, ...]] = _NEUTRAL | {
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (),
}
NEUTRAL_STREAM_OPTIONS: dict[str, tuple[Any, ...]] = {"include_obfuscation": (False,)}
NEUTRAL_MESSAGE: dict[str, tuple[Any, ...]] = {
    "tool_calls": ([],),
    "function_call": (),
    "audio": (),
    "refusal": (),
    "annotations": ([],),
}
#: Labels for the caller's own bookkeeping: nothing is lost by not looking at them.
_LABELS = frozenset({"metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"})

_PART_TYPES = frozenset({"image_url", "input_audio", "file", "refusal", "video_url", "audio_url"})


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """``ignored``: names of fields that had no effect, fit for a header."""

    client: ClientRequest
    stream: bool
    include_usage: bool
    report: bool
    ignored: tuple[str, ...]

    def granted(self, grant: Grant) -> ParsedRequest:
        """The same request by a caller who may do this."""
        return replace(self, client=replace(self.client, grant=grant))


def parse_chat(body: bytes, request_id: str, trace: dict[str, str], live: LiveSettings) -> ParsedRequest:
    """Body of /v1/chat/completions. ``trace`` is the W3C carrier. Raises InvalidRequest."""
    parsed = read_body(ChatBody, body)
    ignored = _unknown(parsed, NEUTRAL_CHAT, "", _LABELS)
    for rank, message in enumerate(parsed.messages):
        ignored += [f"messages.{name}" for name in _unknown(message, NEUTRAL_MESSAGE, f"messages[{rank}].")]
    prompt = _chat_prompt(parsed)
    asked, param = parsed.max_tokens, "max_tokens"
    if parsed.max_completion_tokens is not None:
        if asked not in {None, parsed.max_completion_tokens}:
            raise InvalidRequest("max_tokens: differs from max_completion_tokens; send one of the two", "max_tokens")
        asked, param = parsed.max_completion_tokens, "max_completion_tokens"
    return _parsed(parsed, prompt, _max_tokens(asked, param, live.limits), ignored, request_id, trace, live)


def parse_completion(body: bytes, request_id: str, trace: dict[str, str], live: LiveSettings) -> ParsedRequest:
    """Body of the legacy /v1/completions. Raises InvalidRequest."""
    parsed = read_body(CompletionBody, body)
    ignored = _unknown(parsed, NEUTRAL_COMPLETION, "", _LABELS)
    prompt = _raw_prompt(parsed.prompt)
    limit = _max_tokens(parsed.max_tokens, "max_tokens", live.limits)
    return _parsed(parsed, prompt, limit, ignored, request_id, trace, live)


def _parsed(
    body: GenerationBody,
    prompt: Prompt,
    max_tokens: int,
    ignored: list[str],
    request_id: str,
    trace: dict[str, str],
    live: LiveSettings,
) -> ParsedRequest:
    if not body.model:
        raise InvalidRequest("model: must not be empty", "model")
    stream, options = bool(body.stream), body.stream_options
    if options is not None:
        if not stream:
            raise InvalidRequest("stream_options: only allowed when stream is true", "stream_options")
        ignored += [f"stream_options.{n}" for n in _unknown(options, NEUTRAL_STREAM_OPTIONS, "stream_options.")]
    disco = body.disco or DiscoOptions()
    if disco.events and not stream:
        raise InvalidRequest("disco.events: only allowed when stream is true", "disco.events")
    client = ClientRequest(
        request_id=request_id,
        model=body.model,
        prompt=prompt,
        sampling=_sampling(body, max_tokens),
        stop=_stops(body.stop),
        consumption_rate=_consumption_rate(disco, live),
        delivery="paced" if live.reader.delivery == "paced" else disco.delivery or live.reader.delivery,
        pin=disco.pin,
        endpoints=tuple(disco.endpoints or ()),
        migrate=disco.migrate and live.migration.mode != "off",
        events=disco.events,
        trace=trace,
    )
    include_usage = options is not None and bool(options.include_usage)
    return ParsedRequest(client, stream, include_usage, disco.report, _header_names(ignored))


def _consumption_rate(disco: DiscoOptions, live: LiveSettings) -> float | None:
    """The client knows its reader best, so its rate replaces the operator's, faster or slower.

    It allows nothing more: how far a leg runs ahead, whether it may migrate and what it may cost stay the operator's,
    and a rate so fast that no lead builds up does no more than ``migrate: false``, which is the client's to say.
    """
    return disco.consumption_rate if "consumption_rate" in disco.model_fields_set else live.reader.consumption_rate


def _sampling(body: GenerationBody, max_tokens: int) -> Sampling:
    temperature = 1.0 if body.temperature is None else body.temperature
    top_p = 1.0 if body.top_p is None else body.top_p
    if top_p == 0:
        # A nucleus without mass holds the likeliest token only: greedy, which engines spell as temperature 0.
        temperature, top_p = 0.0, 1.0
    return Sampling(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=body.seed,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
    )


def _max_tokens(asked: int | None, param: str, limits: LimitSettings) -> int:
    if asked is None:
        return min(limits.default_max_tokens, limits.max_tokens)
    if asked > limits.max_tokens:
        raise InvalidRequest(f"{param}: at most {limits.max_tokens} tokens are served here; ask for fewer", param)
    return asked


def _stops(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise InvalidRequest("stop: must be a string or an array of strings", "stop")
    if len(stops) > MOST_STOPS:
        raise InvalidRequest(f"stop: at most {MOST_STOPS} stop strings are allowed", "stop")
    if not all(1 <= len(stop) <= MOST_STOP_CHARACTERS for stop in stops):
        raise InvalidRequest(f"stop: each stop string must have 1 to {MOST_STOP_CHARACTERS} characters", "stop")
    return tuple(stops)


# --- prompts ----------------------------------------------------------------------------------------------------


def _chat_prompt(body: ChatBody) -> ChatPrompt:
    messages = [_message(message, f"messages[{rank}]") for rank, message in enumerate(body.messages)]
    if not body.continue_final_message:
        if body.add_generation_prompt is False:
            raise Unsupported(
                "add_generation_prompt: false is only served together with continue_final_message",
                "add_generation_prompt",
            )
        return ChatPrompt(tuple(messages))
    if body.add_generation_prompt:
        raise InvalidRequest(
            "add_generation_prompt: a new answer cannot begin where one is continued; leave the field out",
            "add_generation_prompt",
        )
    *before, last = messages
    if last.role != "assistant":
        raise InvalidRequest(
            "continue_final_message: the last message must be the assistant's, to be continued",
            "continue_final_message",
        )
    if not last.content:
        raise InvalidRequest(
            "continue_final_message: the last message is empty; leave the flag out to begin an answer",
            "continue_final_message",
        )
    if not before:
        raise InvalidRequest("messages: nothing comes before the message to be continued", "messages")
    return ChatPrompt(tuple(before), last.content)


def _message(message: ChatMessage, path: str) -> Message:
    if message.role in {"tool", "function"}:
        raise Unsupported(f"{path}.role: results of tools are not supported", f"{path}.role")
    # Chat templates know no developer; OpenAI made it the newer name of system.
    role = "system" if message.role == "developer" else message.role
    return Message(role, _content(message.content, f"{path}.content"))


def _content(value: Any, path: str) -> str:
    """Text parts are joined by line breaks, as vLLM and llama.cpp's server do."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise InvalidRequest(f"{path}: must be a string or a non-empty array of parts", path)
    return "\n".join(_part(part, f"{path}[{rank}]") for rank, part in enumerate(value))


def _part(part: Any, path: str) -> str:
    if not isinstance(part, dict):
        raise InvalidRequest(f'{path}: must be an object, such as {{"type": "text", "text": "..."}}', path)
    kind = part.get("type")
    if kind != "text":
        named = f"{kind} parts are" if isinstance(kind, str) and kind in _PART_TYPES else "this type is"
        raise Unsupported(f"{path}.type: {named} not supported; send text parts", f"{path}.type")
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequest(f"{path}.text: must be a string", f"{path}.text")
    return text


def _raw_prompt(value: Any) -> TextPrompt | TokenPrompt:
    """A string, [string], token ids, or [token ids]."""
    if isinstance(value, list) and value and all(isinstance(one, str | list) for one in value):
        if len(value) > 1:
            raise Unsupported("prompt: one prompt per request; send several requests", "prompt")
        value = value[0]
    if isinstance(value, str) and value:
        return TextPrompt(value)
    if value in ("", []):
        raise InvalidRequest("prompt: must not be empty", "prompt")
    value = [whole(token) for token in value] if isinstance(value, list) else value
    if not isinstance(value, list) or not all(type(token) is int for token in value):
        raise InvalidRequest("prompt: must be a string, or an array of token ids and nothing else", "prompt")
    if not all(0 <= token <= MOST_TOKEN_ID for token in value):
        raise InvalidRequest(f"prompt: each token id must be a number from 0 to {MOST_TOKEN_ID}", "prompt")
    return TokenPrompt(tuple(value))


# --- fields without effect --------------------------------------------------------------------------------------


def _unknown(
    part: BaseModel, neutral: Mapping[str, tuple[Any, ...]], path: str, labels: Iterable[str] = ()
) -> list[str]:
    """Names of fields nobody knows. Raises Unsupported for a known one that asks for something."""
    names = []
    for name, value in (part.model_extra or {}).items():
        if name in neutral:
            asked = whole(value)
            if asked is not None and not any(type(asked) is type(n) and asked == n for n in neutral[name]):
                raise Unsupported(f"{path}{name}: this value is not supported; leave the field out", f"{path}{name}")
        elif name not in labels:
            names.append(name)
    return names


def _header_names(names: Iterable[str]) -> tuple[str, ...]:
    """Each once, in order, bounded in number and length, without a character that a header could not carry."""
    first = islice(dict.fromkeys(name[:_MOST_NAME_CHARACTERS] for name in names), _MOST_IGNORED)
    return tuple(dict.fromkeys(re.sub(r"[^A-Za-z0-9_.-]", "?", name) or "?" for name in first))
