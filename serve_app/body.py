"""The JSON bodies of OpenAI's two generation calls, as far as types go. What they mean is ``schema``'s business."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

import pydantic_core
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from serve_app.core.errors import InvalidRequest
from serve_app.core.model import Pin
from serve_app.fields import Rate, Whole
from serve_app.wording import expected, wants_array, wants_object

B = TypeVar("B", bound=BaseModel)


Count = Annotated[Whole, Field(ge=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
#: A 64-bit signed integer, as OpenAI documents it.
Seed = Annotated[Whole, Field(ge=-(2**63), lt=2**63)]

#: As many as OpenAI takes: each of them costs the router time, whatever it says.
MOST_MESSAGES = 2048

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_POSITION = re.compile(r"line \d+ column \d+")


class _Part(BaseModel):
    model_config = ConfigDict(
        strict=True, allow_inf_nan=False, extra="allow", hide_input_in_errors=True, protected_namespaces=()
    )


class DiscoOptions(_Part):
    """Wishes of this request. ``consumption_rate``: r_c, tokens per second; null: unknown; absent: the operator's.

    ``events``: tell what happens while it happens.
    """

    model_config = ConfigDict(extra="forbid")

    report: bool = False
    events: bool = False
    consumption_rate: Rate | None = None
    delivery: Literal["eager", "paced"] | None = None
    pin: Annotated[Pin, Field(strict=False)] | None = None
    endpoints: Annotated[list[str], Field(min_length=1)] | None = None
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
    max_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Seed | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    stop: Any = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    disco: DiscoOptions | None = None


class ChatBody(GenerationBody):
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MOST_MESSAGES)]
    max_completion_tokens: Count | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None


class CompletionBody(GenerationBody):
    prompt: Any


def read_object(body: bytes, example: str = '{"model": ...}') -> dict[str, Any]:
    """Raise InvalidRequest for anything that is no JSON object."""
    if not body.strip():
        raise InvalidRequest("the body is empty; send a JSON object with the request's fields")
    try:
        document = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        position = _POSITION.search(str(error))
        where = f" ({position.group()})" if position else ""
        raise InvalidRequest(
            f"the body is not valid JSON{where}; send a JSON object in UTF-8, without NaN or Infinity"
        ) from None
    if not isinstance(document, dict):
        raise InvalidRequest(f"the body must be a JSON object with the request's fields, such as {example}")
    return document


def read_body(model: type[B], body: bytes, example: str = '{"model": ...}') -> B:
    """Raise InvalidRequest, naming the field, for anything that is not such a body. The message quotes no value."""
    document = read_object(body, example)
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise refused(error) from None


_EXAMPLES: Mapping[str, str] = MappingProxyType(
    {
        "messages": '{"role": "user", "content": "..."}',
        "stream_options": '{"include_usage": true}',
        "disco": '{"report": true}',
        "disco.endpoints": '["phone"]',
        "owners": '["alice"]',
        "serves": '["disco"]',
        "prices": '{"parameters_billion": 1}',
        "policy": '{"budget": 0.3}',
        "migration": '{"mode": "off"}',
        "reader": '{"delivery": "paced"}',
    }
)

#: A field that a check of several names itself.
_NAMED = re.compile(r"([a-z_]+): ")


def refused(error: ValidationError) -> InvalidRequest:
    """What the first problem of a body is. The message quotes no value."""
    (first, *_) = error.errors(include_input=False, include_url=False)
    loc, param = first["loc"], field_path(first["loc"])
    kind = "an array" if wants_array(first) else "an object" if wants_object(first) else None
    message = f"must be {kind}" if kind else expected(first) or "this value is not allowed here"
    if loc and (kind or first["type"] == "too_short"):
        example = _EXAMPLES.get(param) or _EXAMPLES.get(str(loc[0]))
        message += f", such as {example}" if example else ""
    if param:
        return InvalidRequest(f"{param}: {message}", param)
    named = _NAMED.match(message)
    return InvalidRequest(message, named[1] if named else None)


def field_path(loc: tuple[int | str, ...]) -> str:
    """``messages[0].content``; a name that is no plain word is left out, for it may be anything."""
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif _PLAIN_NAME.fullmatch(part):
            path += f".{part}" if path else part
    return path
