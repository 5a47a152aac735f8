"""OpenAI's wire format: chunks as server-sent events, and whole bodies."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from serve_app.streams import Delta, Outcome, Usage

DONE = b"data: [DONE]\n\n"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


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
    """Renders one stream. ``report``: chunks name their endpoint, and the last one before [DONE] carries the report."""

    def __init__(self, envelope: Envelope, *, include_usage: bool, report: bool) -> None:
        self._chat = envelope.kind == "chat"
        self._head = _json(envelope.head("chat.completion.chunk" if self._chat else "text_completion"))[:-1]
        self._include_usage = include_usage
        self._report = report
        self._first = True
        self._tokens = 0

    def delta(self, delta: Delta) -> bytes:
        """An event whose id is the number of tokens shown with it; the first one of a chat names the role."""
        text = _json(delta.text)
        if self._chat:
            role = '"role":"assistant",' if self._first else ""
            choice = f'{{"index":0,"delta":{{{role}"content":{text}}},"logprobs":null,"finish_reason":null}}'
        else:
            choice = f'{{"index":0,"text":{text},"logprobs":null,"finish_reason":null}}'
        self._first = False
        self._tokens = delta.index + delta.count
        extra = f',"disco":{{"endpoint":{_json(delta.endpoint)}}}' if self._report else ""
        return self._event(choice, extra)

    def end(self, outcome: Outcome) -> bytes:
        """The finish, the usage if asked for, the report if asked for, and [DONE]."""
        finish = _json(outcome.finish_reason)
        empty = '"delta":{"role":"assistant","content":""}' if self._first else '"delta":{}'
        body = empty if self._chat else '"text":""'
        choice = f'{{"index":0,{body},"logprobs":null,"finish_reason":{finish}}}'
        report = f',"disco":{_json(outcome.report)}' if self._report else ""
        if not self._include_usage:
            return self._event(choice, report) + DONE
        usage = f',"usage":{_json(usage_body(outcome.usage))}'
        last = f"id: {self._tokens}\ndata: {self._head},\"choices\":[]{usage}{report}}}\n\n".encode()
        return self._event(choice, "") + last + DONE

    def _event(self, choice: str, extra: str) -> bytes:
        usage = ',"usage":null' if self._include_usage else ""
        return f'id: {self._tokens}\ndata: {self._head},"choices":[{choice}]{usage}{extra}}}\n\n'.encode()


def error_event(error: dict[str, Any]) -> bytes:
    """An error after the status line; nothing follows it."""
    return f"data: {_json(error)}\n\n".encode()


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
