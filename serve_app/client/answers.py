"""A streamed answer, event by event: the one reader of chat completions that all of this project's clients share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from actors.engines.openai_http_sse import EventParser, EventTooLong, ServerEvent
from serve_app.client.calls import complaint, json_of
from serve_app.client.errors import CallFailed, Cause, Interrupted

DONE: Final = "[DONE]"


@dataclass(frozen=True, slots=True)
class Chunk:
    """One event. Absent is what the server did not say, or said in another shape than OpenAI's.

    at: the clock's seconds when its bytes were read. shown: tokens of the answer so far, where this service numbers its
    events. endpoint, report: this service's. completion_tokens: the server's own count at the end.
    """

    at: float
    text: str = ""
    shown: int | None = None
    endpoint: str = ""
    finish: str | None = None
    completion_tokens: int | None = None
    report: Mapping[str, Any] | None = None


async def chunks(response: aiohttp.ClientResponse, clock: Callable[[], float]) -> AsyncIterator[Chunk]:
    """Until [DONE]. Raises ``CallFailed`` for an error that the server sends, ``Interrupted`` where no [DONE] comes."""
    parser = EventParser()
    async for piece in response.content.iter_any():
        at = clock()
        try:
            events = parser.feed(piece)
        except EventTooLong:
            raise CallFailed("the server sent an event of more than a mebibyte", Cause.FAILED, "malformed") from None
        for event in events:
            if event.data == DONE:
                return
            yield read_chunk(event, at)
    message = "the connection ended before the answer was complete"
    raise Interrupted(message, Cause.FAILED, "connection_broken", begun=True)


def read_chunk(event: ServerEvent, at: float) -> Chunk:
    """Any event but [DONE]. Raises ``CallFailed`` for an error object, and for what is no JSON object."""
    document = json_of(event.data)
    failure = complaint(document)
    if failure is not None:
        code = str(document["error"].get("code") or "failed")
        raise CallFailed(f"the answer could not be completed: {failure}", Cause.FAILED, code)
    if not isinstance(document, dict):
        raise CallFailed("the server sent an event that is no JSON object", Cause.FAILED, "malformed")
    choice, extension, usage = _first(document), _object(document, "disco"), _object(document, "usage")
    text, finish, tokens = (
        _object(choice, "delta").get("content"),
        choice.get("finish_reason"),
        usage.get("completion_tokens"),
    )
    return Chunk(
        at=at,
        text=text if isinstance(text, str) else "",
        shown=int(event.id) if event.id.isdecimal() else None,
        endpoint=str(extension.get("endpoint", "")),
        finish=finish if isinstance(finish, str) and finish else None,
        completion_tokens=tokens if type(tokens) is int else None,
        report=extension if "policy" in extension else None,
    )


def _first(document: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = document.get("choices")
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}


def _object(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = document.get(name)
    return value if isinstance(value, dict) else {}
