"""One event of a server's stream, read strictly: what it says about text, ids, the end and the count of tokens."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from actors.engines.openai_http_errors import Failed, complaint_in, reported
from actors.engines.openai_http_sse import ServerEvent
from serve_app.core.errors import EndpointFault
from serve_app.core.model import FinishReason

DONE: Final = "[DONE]"

_FINISHES: Final = {
    "stop": FinishReason.STOP,
    "eos": FinishReason.STOP,
    "eos_token": FinishReason.STOP,
    "end_turn": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "max_tokens": FinishReason.LENGTH,
}
_FAILURES: Final = {
    "content_filter": "the server's content filter ended the answer",
    "tool_calls": "the server answers with a tool call, which was not asked for",
    "function_call": "the server answers with a tool call, which was not asked for",
    "abort": "the server aborted the answer",
    "error": "the server ended the answer with an error",
}


@dataclass(frozen=True, slots=True)
class ServerUsage:
    """Tokens as the server counts them; ``prompt_tokens`` includes a given beginning of the answer."""

    prompt_tokens: int | None
    completion_tokens: int | None


@dataclass(frozen=True, slots=True)
class Piece:
    """``reasoning``: tokens were generated that are not part of the answer. ``token_ids``: None where none came."""

    text: str = ""
    token_ids: tuple[int, ...] | None = None
    reasoning: bool = False
    finish: FinishReason | None = None
    usage: ServerUsage | None = None

    @property
    def generated(self) -> bool:
        return bool(self.text or self.token_ids or self.reasoning or self.finish)


def read_event(event: ServerEvent, param: str) -> Piece | None:
    """None for the end of the stream. Raises ``Failed`` for an error object or anything malformed.

    ``param``: the request's field that holds the prompt.
    """
    if event.data.strip() == DONE:
        return None
    try:
        document: Any = json.loads(event.data)
    except (ValueError, RecursionError):
        raise Failed(EndpointFault("the server sent an event that is not JSON")) from None
    complaint = complaint_in(document)
    if complaint is not None:
        raise reported(complaint, param)
    if event.type == "error":
        raise Failed(EndpointFault("the server reported an error in its stream"))
    if not isinstance(document, dict):
        raise _malformed()
    usage = _usage(document.get("usage"))
    choices = document.get("choices") or []
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise _malformed()
    choice = next((choice for choice in choices if choice.get("index", 0) == 0), None)
    return Piece(usage=usage) if choice is None else _piece(choice, usage)


def read_stray(line: str, param: str) -> Failed | None:
    """The error in a line that should have been a field; None if it is none."""
    try:
        complaint = complaint_in(json.loads(line))
    except (ValueError, RecursionError):
        return None
    return None if complaint is None else reported(complaint, param)


def _piece(choice: dict[str, Any], usage: ServerUsage | None) -> Piece:
    delta = choice.get("delta") or {}
    if not isinstance(delta, dict):
        raise _malformed()
    text = choice.get("text") if "text" in choice else delta.get("content")
    if not isinstance(text, str | None):
        raise _malformed()
    return Piece(
        text=text or "",
        token_ids=_ids(choice.get("token_ids")),
        reasoning=bool(delta.get("reasoning_content") or delta.get("reasoning")),
        finish=_finish(choice.get("finish_reason")),
        usage=usage,
    )


def _finish(word: object) -> FinishReason | None:
    # Some servers send an empty word with every piece.
    if word is None or word == "":
        return None
    if isinstance(word, str) and word in _FINISHES:
        return _FINISHES[word]
    how = _FAILURES.get(word) if isinstance(word, str) else None
    raise Failed(EndpointFault(how or "the server ended the answer for a reason that nobody knows"))


def _ids(value: object) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(token) is int and 0 <= token < 2**31 for token in value):
        raise _malformed()
    return tuple(value)


def _usage(value: object) -> ServerUsage | None:
    if not isinstance(value, dict):
        return None
    return ServerUsage(_count(value.get("prompt_tokens")), _count(value.get("completion_tokens")))


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _malformed() -> Failed:
    return Failed(EndpointFault("the server sent an event of another shape than OpenAI's"))
