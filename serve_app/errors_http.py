"""The one table from errors to HTTP."""

from __future__ import annotations

import math
from typing import Any

from serve_app.core.errors import (
    AccessDenied,
    DiscoError,
    Draining,
    EndpointError,
    EndpointTimeout,
    EndpointUnavailable,
    InvalidKey,
    InvalidRequest,
    Overloaded,
    QuotaExceeded,
    UnknownDevice,
    UnknownModel,
)


class BodyTooLarge(InvalidRequest):
    """Only HTTP has bodies."""

    code = "body_too_large"


class BodyTooSlow(DiscoError):
    code = "body_timeout"
    retryable = True


#: Most specific first: (error, status, OpenAI's ``type``).
_TABLE: tuple[tuple[type[DiscoError], int, str], ...] = (
    (BodyTooLarge, 413, "invalid_request_error"),
    (BodyTooSlow, 408, "invalid_request_error"),
    (UnknownModel, 404, "invalid_request_error"),
    (UnknownDevice, 404, "invalid_request_error"),
    (InvalidRequest, 400, "invalid_request_error"),
    (InvalidKey, 401, "invalid_request_error"),
    (AccessDenied, 403, "permission_error"),
    (Overloaded, 429, "rate_limit_error"),
    (QuotaExceeded, 429, "insufficient_quota"),
    (Draining, 503, "server_error"),
    (EndpointUnavailable, 503, "server_error"),
    (EndpointTimeout, 504, "server_error"),
    (EndpointError, 502, "server_error"),
)

#: All that an error may come with; 500 is for faults of the router itself.
STATUSES = frozenset({500} | {status for _, status, _ in _TABLE})


def status_of(error: BaseException) -> int:
    return next((status for kind, status, _ in _TABLE if isinstance(error, kind)), 500)


def error_body(error: BaseException) -> dict[str, Any]:
    """OpenAI's error object, with ``retryable`` added. An unexpected exception tells nothing about itself."""
    if not isinstance(error, DiscoError):
        return plain_error("the router failed; its log has the request's id", "server_error", "internal_error")
    kind = next((name for cls, _, name in _TABLE if isinstance(error, cls)), "server_error")
    param = error.param if isinstance(error, InvalidRequest) else None
    return plain_error(error.message, kind, error.code, param, retryable=error.retryable)


def plain_error(
    message: str, kind: str, code: str, param: str | None = None, *, retryable: bool = False
) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code, "retryable": retryable}}


def error_headers(error: BaseException) -> dict[str, str]:
    headers = {}
    if isinstance(error, BodyTooLarge | BodyTooSlow):
        # What is still to come of the body would be waited for, and thrown away.
        headers["connection"] = "close"
    if isinstance(error, InvalidKey):
        headers["www-authenticate"] = 'Bearer realm="disco"'
    if isinstance(error, QuotaExceeded):
        # OpenAI's clients send a request again after any 429, unless they are told that it is no use.
        headers["x-should-retry"] = "false"
    if isinstance(error, Overloaded | QuotaExceeded) and error.retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))
    return headers
