"""OpenAI's wire format: chunks as server-sent events, and whole bodies."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from serve_app.streams import Delta, Outcome, Usage

#: Legal inside JSON, but some clients take them for the end of an event's line.
_LINE_BREAKS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def _json(value: Any) -> str:
    text = _encode(value)
    return text if text.isascii() else text.translate(_LINE_BREAKS)


def _bytes(text: str) -> bytes:
    """UTF-8; a lone surrogate, which has none, becomes its JSON escape."""
    return text.encode("utf-8", "backslashreplace")


def json_bytes(value: Any) -> bytes:
    return _bytes(_json(value))


@dataclass(frozen=True, slots=True)
class Envelope:
    """What stays the same in every chunk of an answer, whatever endpoints write it. ``created``: Unix seconds."""

    kind: Literal["chat", "completion"]
    id: str
    model: str
    created: int

    def head(self, object_name: str) -> dict[str, Any]:
        return {"id": self.id, "object": object_name, "created": self.created, "model": self.model}


class ChunkWriter:
    """Renders one stream; each event's id is the number of tokens shown with it.

    ``report``: chunks name their endpoint, and the last one before [DONE] carries the report. ``events``: chunks name
    their endpoint and tell what happened; one that has no text for it has an empty piece of it.
    """

    def __init__(self, envelope: Envelope, *, include_usage: bool, report: bool, events: bool = False) -> None:
        self._chat = envelope.kind == "chat"
        self._head = _json(envelope.head("chat.completion.chunk" if self._chat else "text_completion"))[:-1]
        before = f'{self._head},"choices":[{{"index":0,'
        self._open = before + ('"delta":{"content":' if self._chat else '"text":')
        self._first_open = before + '"delta":{"role":"assistant","content":' if self._chat else self._open
        self._usage = ',"usage":null' if include_usage else ""
        unfinished = '"logprobs":null,"finish_reason":null}]' + self._usage
        self._close = ("}," if self._chat else ",") + unfinished
        self._include_usage = include_usage
        self._report = report
        self._named = report or events
        self._first = True
        self._tokens = 0

    def delta(self, delta: Delta) -> bytes:
        """The first one of a chat names the role."""
        head = self._first_open if self._first else self._open
        self._first = False
        self._tokens = delta.index + delta.count
        extra = f',"disco":{_json(_extension(delta))}' if self._named else ""
        return self._event(f"{head}{_json(delta.text)}{self._close}{extra}}}")

    def end(self, outcome: Outcome) -> bytes:
        """The finish, the usage if asked for, the report if asked for, and [DONE]."""
        finish = _json(outcome.finish_reason)
        empty = '"delta":{"role":"assistant","content":""}' if self._first else '"delta":{}'
        body = empty if self._chat else '"text":""'
        choice = f'{{"index":0,{body},"logprobs":null,"finish_reason":{finish}}}'
        report = f',"disco":{_json(outcome.report)}' if self._report else ""
        last = f'{self._head},"choices":[{choice}]{self._usage}'
        done = self._event("[DONE]")
        if not self._include_usage:
            return self._event(f"{last}{report}}}") + done
        usage = f'{self._head},"choices":[],"usage":{_json(usage_body(outcome.usage))}'
        return self._event(f"{last}}}") + self._event(f"{usage}{report}}}") + done

    def error(self, error: dict[str, Any]) -> bytes:
        """An error after the status line; nothing follows it, not even [DONE]."""
        return self._event(_json(error))

    def _event(self, data: str) -> bytes:
        return _bytes(f"id: {self._tokens}\ndata: {data}\n\n")


def _extension(delta: Delta) -> dict[str, Any]:
    """Who wrote the chunk's text, and what happened; without text, only the latter."""
    writer = {"endpoint": delta.endpoint} if delta.count or delta.text else {}
    return writer | ({"events": delta.events} if delta.events else {})


def usage_body(usage: Usage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def whole_body(envelope: Envelope, text: str, outcome: Outcome, *, report: bool) -> dict[str, Any]:
    """The answer to a request without ``stream``."""
    if envelope.kind == "chat":
        choice: dict[str, Any] = {"index": 0, "message": {"role": "assistant", "content": text, "refusal": None}}
        body = envelope.head("chat.completion")
    else:
        choice = {"index": 0, "text": text}
        body = envelope.head("text_completion")
    choice |= {"logprobs": None, "finish_reason": outcome.finish_reason}
    body |= {"choices": [choice], "usage": usage_body(outcome.usage)}
    return body | ({"disco": outcome.report} if report else {})
