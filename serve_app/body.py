"""The JSON bodies of OpenAI's two generation calls, as far as types go. What they mean is ``schema``'s business."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

import pydantic_core
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from serve_app.core.errors import InvalidRequest
from serve_app.core.model import Pin
from serve_app.fields import Rate

B = TypeVar("B", bound=BaseModel)


def whole(value: Any) -> Any:
    """JSON has one kind of numbers: 5.0 is a whole one, and some clients write it so."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Count = Annotated[int, BeforeValidator(whole), Field(ge=1)]
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
#: A 64-bit signed integer, as OpenAI documents it.
Seed = Annotated[int, BeforeValidator(whole), Field(ge=-(2**63), lt=2**63)]

#: As many as OpenAI takes: each of them costs the router time, whatever it says.
MOST_MESSAGES = 2048

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_POSITION = re.compile(r"line \d+ column \d+")


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", hide_input_in_errors=True, protected_namespaces=())


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
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MOST_MESSAGES)]
    max_completion_tokens: Count | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None


class CompletionBody(GenerationBody):
    prompt: Any


def read_object(body: bytes) -> dict[str, Any]:
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
        raise InvalidRequest('the body must be a JSON object with the request\'s fields, such as {"model": ...}')
    return document


def read_body(model: type[B], body: bytes) -> B:
    """Raise InvalidRequest, naming the field, for anything that is not such a body. The message quotes no value."""
    document = read_object(body)
    try:
        return model.model_validate(document)
    except ValidationError as error:
        (first, *_) = error.errors(include_input=False, include_url=False)
        raise _translated(first["type"], first["loc"], first.get("ctx", {})) from None


#: What pydantic's kinds of error mean to a client; the limits are filled in.
_EXPECTED: Mapping[str, str] = MappingProxyType(
    {
        "missing": "this field is required",
        "extra_forbidden": "unknown key; check the spelling or remove it",
        "string_type": "must be a string",
        "bool_type": "must be true or false",
        "int_type": "must be a whole number",
        "float_type": "must be a number",
        "finite_number": "must be a finite number",
        "greater_than_equal": "must be at least {ge}",
        "less_than_equal": "must be at most {le}",
        "less_than": "must be less than {lt}",
        "literal_error": "must be one of {expected}",
        "enum": "must be one of {expected}",
        "list_type": "must be an array",
        "too_short": "must not be empty; send at least one",
        "too_long": "at most {max_length} are served; send fewer",
        "model_type": "must be an object",
    }
)
_EXAMPLES: Mapping[str, str] = MappingProxyType(
    {
        "messages": '{"role": "user", "content": "..."}',
        "stream_options": '{"include_usage": true}',
        "disco": '{"report": true}',
        "disco.endpoints": '["phone"]',
    }
)
_OF_OBJECTS = frozenset({"list_type", "too_short", "model_type"})


def _translated(kind: str, loc: tuple[int | str, ...], limits: Mapping[str, Any]) -> InvalidRequest:
    param = field_path(loc)
    whole = {name: int(x) if isinstance(x, float) and x.is_integer() else x for name, x in limits.items()}
    message = _EXPECTED.get(kind, "this value is not allowed here").format_map(whole)
    if kind in _OF_OBJECTS:
        message += f", such as {_EXAMPLES.get(param) or _EXAMPLES[str(loc[0])]}"
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
