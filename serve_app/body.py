"""The JSON bodies of OpenAI's two generation calls, as far as types go. What they mean is ``schema``'s business."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeVar

import pydantic_core
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from serve_app.core.errors import InvalidRequest
from serve_app.settings import Rate
from serve_app.streams import Pin

B = TypeVar("B", bound=BaseModel)

Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
#: A 64-bit signed integer, as OpenAI documents it.
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_POSITION = re.compile(r"line \d+ column \d+")


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", hide_input_in_errors=True, protected_namespaces=())


class DiscoOptions(_Part):
    """Wishes of this request. ``consumption_rate``: r_c, tokens per second; null: unknown; absent: the operator's."""

    model_config = ConfigDict(extra="forbid")

    report: bool = False
    consumption_rate: Rate | None = None
    delivery: Literal["eager", "paced"] | None = None
    pin: Annotated[Pin, Field(strict=False)] | None = None
    migrate: bool = True


class StreamOptions(_Part):
    include_usage: bool | None = None


class ChatMessage(_Part):
    """``content`` is a string or an array of parts."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Any = None


class GenerationBody(_Part):
    """What both calls share. A null is the same as an absent field."""

    model: str
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    seed: Seed | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    stop: Any = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    disco: DiscoOptions | None = None


class ChatBody(GenerationBody):
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None


class CompletionBody(GenerationBody):
    prompt: Any


def read_body(model: type[B], body: bytes) -> B:
    """Raise InvalidRequest, naming the field, for anything that is not such a body. The message quotes no value."""
    try:
        document = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        position = _POSITION.search(str(error))
        where = f" ({position.group()})" if position else ""
        raise InvalidRequest(f"the body is not valid JSON{where}") from None
    if not isinstance(document, dict):
        raise InvalidRequest("the body must be a JSON object")
    try:
        return model.model_validate(document)
    except ValidationError as error:
        (first, *_) = error.errors(include_input=False, include_url=False, include_context=False)
        raise _translated(first["type"], first["loc"], first["msg"]) from None


def _translated(kind: str, loc: tuple[int | str, ...], message: str) -> InvalidRequest:
    param = field_path(loc)
    if kind == "missing":
        message = "this field is required"
    elif kind == "extra_forbidden":
        message = "unknown key; check the spelling or remove it"
    return InvalidRequest(f"{param}: {message}", param)


def field_path(loc: tuple[int | str, ...]) -> str:
    """``messages[0].content``; a name that is no plain word is left out, for it may be anything."""
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif _PLAIN_NAME.fullmatch(part):
            path += f".{part}" if path else part
    return path
