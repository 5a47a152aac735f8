"""What a server's refusals mean here. No message repeats anything that the server said, but for a few known codes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Final

from serve_app.core.errors import (
    DiscoError,
    EndpointFault,
    EndpointTimeout,
    EndpointUnavailable,
    Overloaded,
    PromptTooLong,
)
from serve_app.engine_settings import OWN_FIELDS

#: Codes and types that tell an operator something. Others may be anything, also a piece of the prompt.
_KNOWN_CODES: Final = frozenset(
    {"invalid_api_key", "model_not_found", "insufficient_quota", "rate_limit_exceeded", "invalid_request_error"}
    | {"unsupported_parameter", "unsupported_value", "unknown_parameter", "invalid_value", "content_filter"}
    | {"server_error", "overloaded_error", "billing_not_active", "BadRequestError", "NotFoundError"}
)
_OVERFLOW_CODES: Final = frozenset({"context_length_exceeded", "exceed_context_size_error", "context_window_exceeded"})
_OVERFLOW: Final = re.compile(
    r"(maximum|max) (context|model) len|context (size|window|length)|prompt is too long|input is too long",
    re.IGNORECASE,
)
_LIMIT: Final = re.compile(r"maximum context length is (\d{1,9})", re.IGNORECASE)
_PROMPT: Final = re.compile(
    r"\((\d{1,9}) in (?:the messages|your prompt)|(?:has|contains)(?: at least)? (\d{1,9}) input tokens", re.IGNORECASE
)
_CAP: Final = re.compile(r"at most (\d{1,9}) completion tokens", re.IGNORECASE)

#: Statuses of a server, or of a proxy before it, that is away for a moment.
_AWAY: Final = frozenset({502, 503, 504})


class Failed(Exception):
    """A call to a server failed with ``error``.

    retry_after: seconds after which the same call may succeed, 0 for soon; None: it never will.
    status: that of the HTTP answer, also where it was 200 and the content is the trouble; None: there was none.
    room: tokens that an answer may have, where the server refused a larger ``max_tokens``.
    """

    def __init__(
        self, error: DiscoError, retry_after: float | None = None, status: int | None = None, room: int | None = None
    ) -> None:
        super().__init__(error)
        self.error = error
        self.retry_after = retry_after
        self.status = status
        self.room = room


@dataclass(frozen=True, slots=True)
class Complaint:
    """A server's error object. ``message`` may quote the prompt, so it is only ever searched."""

    code: str = ""
    type: str = ""
    param: str = ""
    message: str = ""
    status: int | None = None

    @property
    def overflow(self) -> bool:
        return bool({self.code, self.type} & _OVERFLOW_CODES or _OVERFLOW.search(self.message))

    @property
    def room(self) -> int | None:
        """Tokens that an answer may have beside the prompt, where the message has the figures and there are any."""
        cap = _CAP.search(self.message)
        if cap is not None:
            return int(cap[1]) or None
        limit, prompt = _LIMIT.search(self.message), _PROMPT.search(self.message)
        if limit is None or prompt is None:
            return None
        left = int(limit[1]) - int(prompt[1] or prompt[2])
        return left if left > 0 else None

    def hint(self) -> str:
        """What may be told of it: `` (invalid_value: temperature)``."""
        code = next((word for word in (self.code, self.type) if word in _KNOWN_CODES), "")
        known = [word for word in (code, self.param if self.param in OWN_FIELDS else "") if word]
        return f" ({': '.join(known)})" if known else ""


def complaint_in(document: object) -> Complaint | None:
    """The error object in a JSON document; None if it holds none."""
    if not isinstance(document, dict):
        return None
    error = document.get("error")
    if error is None and (document.get("object") == "error" or "detail" in document):
        error = document
    if isinstance(error, str):
        return Complaint(message=error)
    if not isinstance(error, dict):
        return None
    code, message = error.get("code"), error.get("message", error.get("detail"))
    number = code if isinstance(code, int) and not isinstance(code, bool) else error.get("status")
    return Complaint(
        code=code if isinstance(code, str) else "",
        type=_text(error.get("type")),
        param=_text(error.get("param")),
        message=_text(message),
        status=number if isinstance(number, int) else None,
    )


def refused(status: int, headers: Mapping[str, str], body: bytes, param: str) -> Failed:
    """The meaning of an HTTP answer other than 200. ``param``: the request's field that holds the prompt."""
    return _judge(status, _complaint(body) or Complaint(), retry_after(headers), param)


def reported(complaint: Complaint, param: str) -> Failed:
    """The meaning of an error object in a stream that had begun with status 200."""
    status = complaint.status if complaint.status and complaint.status >= HTTPStatus.BAD_REQUEST else None
    if status is not None or complaint.overflow:
        failed = _judge(status or HTTPStatus.BAD_REQUEST, complaint, None, param)
        return Failed(failed.error, failed.retry_after, room=failed.room)
    return Failed(EndpointFault(f"the server reported an error in its stream{complaint.hint()}"))


def no_stream(content_type: str, body: bytes, param: str) -> Failed:
    """Status 200, and then a whole document where a stream was asked for."""
    complaint = _complaint(body)
    if complaint is not None:
        return reported(complaint, param)
    return Failed(
        EndpointFault(f"the server answered with {_kind(content_type)} instead of a stream; check engine.base_url")
    )


def no_json(content_type: str) -> Failed:
    return Failed(
        EndpointFault(f"the server answered with {_kind(content_type)} instead of JSON; check engine.base_url")
    )


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds the server asks to wait; a date counts from the answer's own Date. None if it does not say."""
    try:
        if "retry-after-ms" in headers:
            return max(0.0, float(headers["retry-after-ms"]) / 1000)
        value = headers.get("retry-after", "")
        if value.strip().replace(".", "", 1).isdecimal():
            return float(value)
        return max(0.0, (parsedate_to_datetime(value) - parsedate_to_datetime(headers["date"])).total_seconds())
    except (KeyError, ValueError, TypeError, OverflowError):
        return None


def _judge(status: int, complaint: Complaint, wait: float | None, param: str) -> Failed:
    hint = complaint.hint()
    error: DiscoError
    if status in {401, 403}:
        error = EndpointUnavailable(
            f"the server refuses the key (HTTP {status}); check the variable that engine.api_key_env names"
        )
    elif status == 402 or complaint.code in {"insufficient_quota", "billing_not_active"}:
        error = EndpointUnavailable(f"the server's account is used up (HTTP {status}){hint}")
    elif status == 404:
        error = EndpointUnavailable(
            "the server knows no such model or path (HTTP 404); check engine.model and engine.base_url"
        )
    elif status in {429, 529}:
        overloaded = Overloaded(f"the server has no room now (HTTP {status})", 1.0 if wait is None else wait)
        return Failed(overloaded, wait, status)
    elif status in _AWAY:
        away = EndpointUnavailable(f"the server is not available (HTTP {status})")
        return Failed(away, wait or 0.0, status)
    elif status == 408:
        error = EndpointTimeout("the server gave up waiting (HTTP 408)")
    elif 300 <= status < 400:
        error = EndpointFault(
            f"the server redirects (HTTP {status}), which is not followed; set engine.base_url to the final address"
        )
    elif status == 413 or (status < 500 and complaint.overflow):
        too_long = PromptTooLong("the prompt does not fit the server's context; shorten it", param)
        return Failed(too_long, None, status, complaint.room)
    elif status < 500:
        fault = EndpointFault(f"the server refuses the request (HTTP {status}){hint}")
        return Failed(fault, None, status, complaint.room)
    else:
        error = EndpointUnavailable(f"the server failed (HTTP {status}){hint}")
    return Failed(error, None, status)


def _complaint(body: bytes) -> Complaint | None:
    try:
        document: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return complaint_in(document)


def _kind(content_type: str) -> str:
    return {"text/html": "a web page", "application/json": "a whole document"}.get(content_type, "something else")


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
