"""Every failure this project raises on purpose, as one tree.

    DiscoError
    ├── InvalidRequest          the caller's fault: names the field and the remedy
    │   ├── Unsupported         a known field with a value nobody here can serve
    │   ├── UnknownModel        no such served model
    │   └── PromptTooLong       longer than every context that may serve it
    ├── AccessDenied            missing or wrong key, foreign Host, closed to the network
    ├── Overloaded              full queues or too many streams: come back later
    ├── Draining                shutting down: go to another router
    └── EndpointError           an endpoint's fault, never the caller's
        ├── EndpointUnavailable it died, is not there, or refused the connection
        ├── EndpointTimeout     no first token, or no further token, in time
        └── EndpointFault       it broke the stream's contract

All of them survive pickling across actors: positional arguments only, each handed to ``Exception``. None carries
text of a prompt, a completion or a key.
"""

from __future__ import annotations


class DiscoError(Exception):
    """Base of the tree. ``code`` is stable and machine-readable; ``retryable`` tells a client whether to try again."""

    code = "internal_error"
    retryable = False

    @property
    def message(self) -> str:
        return str(self.args[0]) if self.args else self.code


class InvalidRequest(DiscoError):
    """A request that can never succeed as it is. ``param`` names the offending field."""

    code = "invalid_request"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message, param)
        self.param = param


class Unsupported(InvalidRequest):
    code = "unsupported_value"


class UnknownModel(InvalidRequest):
    code = "model_not_found"


class PromptTooLong(InvalidRequest):
    code = "context_length_exceeded"


class AccessDenied(DiscoError):
    """``status`` is the HTTP status that fits: 401 without a valid key, 403 when a key would not help."""

    code = "access_denied"

    def __init__(self, message: str, status: int = 401) -> None:
        super().__init__(message, status)
        self.status = status


class Overloaded(DiscoError):
    """``retry_after`` is in seconds."""

    code = "overloaded"
    retryable = True

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message, retry_after)
        self.retry_after = retry_after


class Draining(DiscoError):
    code = "draining"
    retryable = True


class EndpointError(DiscoError):
    """An endpoint failed. ``endpoint`` is its id; the message says how, never what it was asked."""

    code = "endpoint_error"
    retryable = True

    def __init__(self, message: str, endpoint: str = "") -> None:
        super().__init__(message, endpoint)
        self.endpoint = endpoint


class EndpointUnavailable(EndpointError):
    code = "endpoint_unavailable"


class EndpointTimeout(EndpointError):
    code = "endpoint_timeout"


class EndpointFault(EndpointError):
    code = "endpoint_fault"
