"""The OpenAPI document of the HTTP surface. What requests may hold comes from the models and tables that judge them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, TypeAlias

from pydantic import BaseModel

from serve_app.body import ChatBody, ChatMessage, CompletionBody, DiscoOptions, GenerationBody, StreamOptions
from serve_app.core.model import Pin
from serve_app.devices import DeviceRegistration, DeviceReport
from serve_app.errors_http import STATUSES
from serve_app.live_policy import SECTIONS
from serve_app.schema import (
    MOST_STOP_CHARACTERS,
    MOST_STOPS,
    MOST_TOKEN_ID,
    NEUTRAL_CHAT,
    NEUTRAL_COMPLETION,
    NEUTRAL_MESSAGE,
    NEUTRAL_STREAM_OPTIONS,
)
from serve_app.settings import LimitSettings

Schema: TypeAlias = dict[str, Any]

_PARTS: Final = "#/components/schemas/{model}"
_TEXT: Final[Schema] = {"type": "string"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_TOKEN_IDS: Final[Schema] = {
    "type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0, "maximum": MOST_TOKEN_ID},
}  # fmt: skip
_SOME_TEXT: Final[Schema] = {"type": "string", "minLength": 1}

#: What the models leave to ``schema`` to judge.
_STOP: Final[Schema] = {
    "anyOf": [
        _SOME_TEXT | {"maxLength": MOST_STOP_CHARACTERS},
        {"type": "array", "maxItems": MOST_STOPS, "items": _SOME_TEXT | {"maxLength": MOST_STOP_CHARACTERS}},
        {"type": "null"},
    ]
}
_PROMPT: Final[Schema] = {
    "anyOf": [
        _SOME_TEXT,
        _TOKEN_IDS,
        {"type": "array", "minItems": 1, "maxItems": 1, "items": {"anyOf": [_SOME_TEXT, _TOKEN_IDS]}},
    ]
}
_CONTENT: Final[Schema] = {
    "anyOf": [
        _TEXT,
        {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "properties": {"type": {"const": "text"}, "text": _TEXT},
                "required": ["type", "text"],
            },
        },
    ]
}
_ROLES: Final = ("system", "developer", "user", "assistant")

_ERROR: Final[Schema] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code", "retryable"],
            "properties": {
                "message": _TEXT,
                "type": _TEXT,
                "param": {"type": ["string", "null"]},
                "code": _TEXT,
                "retryable": {"type": "boolean"},
            },
        }
    },
}
_MODEL: Final[Schema] = {
    "type": "object",
    "required": ["id", "object", "created", "owned_by"],
    "properties": {"id": _TEXT, "object": {"const": "model"}, "created": _COUNT, "owned_by": _TEXT},
}
_MODELS: Final[Schema] = {
    "type": "object",
    "required": ["object", "data"],
    "properties": {
        "object": {"const": "list"},
        "data": {"type": "array", "items": {"$ref": _PARTS.format(model="Model")}},
    },
}
_HEALTH: Final[Schema] = {"type": "object", "required": ["status"], "properties": {"status": {"const": "ok"}}}
_POLICY: Final[Schema] = {
    "type": "object",
    "properties": {section: {"type": ["object", "string"]} for section in SECTIONS},
    "additionalProperties": False,
}
_READY: Final[Schema] = {
    "type": "object",
    "required": ["ready", "endpoints"],
    "properties": {
        "ready": {"type": "boolean"},
        "endpoints": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "required": ["ready"],
                "properties": {"ready": {"type": "boolean"}, "reason": _TEXT},
            },
        },
    },
}
_USAGE: Final[Schema] = {
    "type": "object",
    "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
    "properties": {"prompt_tokens": _COUNT, "completion_tokens": _COUNT, "total_tokens": _COUNT},
}
_EVENT: Final[Schema] = {
    "type": "object",
    "description": "Each event: OpenAI's chunks, then [DONE]; or an error object, and nothing after it.",
    "required": ["id", "data"],
    "properties": {"id": _TEXT | {"description": "The number of tokens shown so far."}, "data": _TEXT},
}
_ANSWER_HEADERS: Final[Schema] = {
    "x-disco-policy": {"required": True, "schema": _TEXT, "description": "What planned the request."},
    "x-disco-ignored": {"schema": _TEXT, "description": "Fields of the request that nobody here knows."},
}
_LATER: Final[Schema] = {"retry-after": {"schema": _TEXT, "description": "Seconds."}}


def document(models: Sequence[str], limits: LimitSettings, *, keyed: bool, devices: bool = False) -> Schema:
    """For these served names and limits. ``keyed``: callers need an API key. ``devices``: they may join and report."""
    document: Schema = {
        "openapi": "3.1.0",
        "info": {"title": "DiSCo-Serve", "version": "1", "description": "OpenAI's API over a cloud and a device."},
        "paths": {
            "/v1/chat/completions": {
                "post": _generation("chat", "ChatBody", _answer("chat.completion", {"message": _message()}))
            },
            "/v1/completions": {
                "post": _generation("complete", "CompletionBody", _answer("text_completion", {"text": _TEXT}))
            },
            "/v1/models": {"get": _question("models", "ModelList", errors=(401, 403))},
            "/v1/models/{name}": {
                "get": _question("model", "Model", errors=(401, 403, 404))
                | {"parameters": [{"name": "name", "in": "path", "required": True, "schema": _TEXT}]}
            },
            "/openapi.json": {"get": _question("describe", None, errors=(401, 403))},
            "/health": {"get": _question("health", "Health") | {"security": []}},
            "/ready": {
                "get": _question("ready", "Ready", also=503) | {"security": []},
            },
            "/disco/live": {"get": _question("live", None, errors=(401, 403))},
            "/disco/policy": {
                "get": _question("policy", "Policy", errors=(401, 403)),
                "patch": _question("retune", "Policy", errors=(400, 401, 403, 413))
                | {"requestBody": {"required": True, "content": _json("Policy")}},
            },
            "/metrics": {
                "get": {
                    "operationId": "metrics",
                    "responses": {
                        "200": {"description": "Prometheus' text format", "content": {"text/plain": {"schema": _TEXT}}},
                        **_errors((401, 403)),
                    },
                }
            },
        },
        "components": {
            "schemas": {
                "ChatBody": _body(ChatBody, NEUTRAL_CHAT, models, limits),
                "CompletionBody": _body(CompletionBody, NEUTRAL_COMPLETION, models, limits),
                "ChatMessage": _chat_message(),
                "StreamOptions": _with_neutral(_own(StreamOptions), NEUTRAL_STREAM_OPTIONS),
                "DiscoOptions": _own(DiscoOptions),
                "Pin": {"enum": [pin.value for pin in Pin]},
                "Error": _ERROR,
                "Model": _MODEL,
                "ModelList": _MODELS,
                "Health": _HEALTH,
                "Ready": _READY,
                "Usage": _USAGE,
                "Policy": _POLICY,
            }
        },
    }
    if devices:
        document["paths"] |= _device_paths()
        document["components"]["schemas"] |= _with_parts(DeviceRegistration) | _with_parts(DeviceReport)
    if keyed:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


# --- devices ----------------------------------------------------------------------------------------------------


def _device_paths() -> Schema:
    named = {"parameters": [{"name": "name", "in": "path", "required": True, "schema": _TEXT}]}
    done = {"204": {"description": HTTPStatus.NO_CONTENT.phrase}}
    listed = {"type": "object", "required": ["devices"], "properties": {"devices": {"type": "array"}}}
    token = {"type": "object", "required": ["name", "token"], "properties": {"name": _TEXT, "token": _TEXT}}
    return {
        "/disco/devices": {
            "get": {"operationId": "devices", "responses": _answered(200, listed) | _errors((401, 403))},
            "post": {
                "operationId": "register",
                "requestBody": _json_of("DeviceRegistration"),
                "responses": _answered(201, token) | _errors((400, 401, 403, 413)),
            },
        },
        "/disco/devices/{name}": {
            "delete": {"operationId": "remove", "responses": done | _errors((401, 403, 404)), **named}
        },
        "/disco/devices/{name}/report": {
            "post": {
                "operationId": "report",
                "requestBody": _json_of("DeviceReport"),
                "responses": done | _errors((400, 401, 403, 404, 413)),
                **named,
            }
        },
    }


def _json_of(model: str) -> Schema:
    return {"required": True, "content": {"application/json": {"schema": {"$ref": _PARTS.format(model=model)}}}}


def _answered(status: int, schema: Schema) -> Schema:
    answer = {"description": HTTPStatus(status).phrase, "content": {"application/json": {"schema": schema}}}
    return {str(status): answer}


def _with_parts(model: type[BaseModel]) -> Schema:
    """The model's schema and those of its parts, by name."""
    schema: Schema = model.model_json_schema(ref_template=_PARTS)
    parts: Schema = schema.pop("$defs", {})
    return parts | {model.__name__: schema}


# --- requests ---------------------------------------------------------------------------------------------------


def _body(
    model: type[GenerationBody], neutral: Mapping[str, tuple[Any, ...]], models: Sequence[str], limits: LimitSettings
) -> Schema:
    schema = _with_neutral(_own(model), neutral)
    properties = schema["properties"]
    properties["model"] = {"enum": list(models)}
    properties["stop"] = _STOP
    for name in ("max_tokens", "max_completion_tokens"):
        if name in properties:
            properties[name] = {"type": ["integer", "null"], "minimum": 1, "maximum": limits.max_tokens}
    if "prompt" in properties:
        properties["prompt"] = _PROMPT
    return schema


def _chat_message() -> Schema:
    schema = _with_neutral(_own(ChatMessage), NEUTRAL_MESSAGE)
    schema["properties"] |= {"role": {"enum": list(_ROLES)}, "content": _CONTENT}
    return schema | {"required": ["role", "content"]}


def _own(model: type[Any]) -> Schema:
    """The model's schema, of which other models are parts by reference."""
    schema: Schema = model.model_json_schema(ref_template=_PARTS)
    schema.pop("$defs", None)
    return schema


def _with_neutral(schema: Schema, neutral: Mapping[str, tuple[Any, ...]]) -> Schema:
    """Fields that are known and have no effect: any other value is refused."""
    schema["properties"] |= {name: {"enum": [*values, None]} for name, values in neutral.items()}
    return schema


# --- responses --------------------------------------------------------------------------------------------------


def _generation(name: str, body: str, answer: Schema) -> Schema:
    return {
        "operationId": name,
        "requestBody": _json_of(body),
        "responses": {
            "200": {
                "description": "The answer",
                "headers": _ANSWER_HEADERS,
                "content": {"application/json": {"schema": answer}, "text/event-stream": {"schema": _EVENT}},
            },
            **_errors(STATUSES),
        },
    }


def _answer(kind: str, content: Schema) -> Schema:
    choice = {
        "type": "object",
        "required": ["index", *content, "logprobs", "finish_reason"],
        "properties": {
            "index": {"const": 0},
            **content,
            "logprobs": {"type": "null"},
            "finish_reason": {"enum": ["stop", "length"]},
        },
    }
    return {
        "type": "object",
        "required": ["id", "object", "created", "model", "choices", "usage"],
        "properties": {
            "id": _TEXT,
            "object": {"const": kind},
            "created": _COUNT,
            "model": _TEXT,
            "choices": {"type": "array", "minItems": 1, "maxItems": 1, "items": choice},
            "usage": {"$ref": _PARTS.format(model="Usage")},
            "disco": {"type": "object", "description": "The report, if it was asked for."},
        },
    }


def _message() -> Schema:
    return {
        "type": "object",
        "required": ["role", "content", "refusal"],
        "properties": {"role": {"const": "assistant"}, "content": _TEXT, "refusal": {"type": "null"}},
    }


def _question(name: str, schema: str | None, *, errors: Iterable[int] = (), also: int | None = None) -> Schema:
    """A call without a body. ``also``: another status that comes with the same ``schema``."""
    answer = {"content": _json(schema)}
    statuses = [200] if also is None else [200, also]
    return {
        "operationId": name,
        "responses": {str(s): {"description": HTTPStatus(s).phrase, **answer} for s in statuses} | _errors(errors),
    }


def _json(schema: str | None) -> Schema:
    return {"application/json": {"schema": {"$ref": _PARTS.format(model=schema)} if schema else {"type": "object"}}}


def _errors(statuses: Iterable[int]) -> Schema:
    content = {"application/json": {"schema": {"$ref": _PARTS.format(model="Error")}}}
    return {
        str(status): {"description": HTTPStatus(status).phrase, "content": content}
        | ({"headers": _LATER} if status == HTTPStatus.TOO_MANY_REQUESTS else {})
        for status in sorted(set(statuses))
    }
