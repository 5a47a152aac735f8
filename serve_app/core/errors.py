"""Every failure this project raises on purpose, as one tree.

    DiscoError
    ├── InvalidRequest          the caller's fault: names the field and the remedy
    │   ├── Unsupported         a known field with a value nobody here can serve
    │   ├── UnknownModel        no such served model
    │   ├── UnknownDevice       no such registered device
    │   └── PromptTooLong       longer than every context that may serve it
    ├── AccessDenied            foreign Host, closed to the network, or more than the key allows
    │   └── InvalidKey          no key, or none that is known here
    ├── Overloaded              full queues or too many streams: come back later
    │   └── RateLimited         more than the key may ask for at once or in a minute
    ├── QuotaExceeded           what the key may spend is spent
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


class UnknownDevice(InvalidRequest):
    code = "device_not_found"


class PromptTooLong(InvalidRequest):
    code = "context_length_exceeded"


class AccessDenied(DiscoError):
    """The caller may not do this, and another key would be needed, if any helps."""

    code = "access_denied"


class InvalidKey(AccessDenied):
    code = "invalid_api_key"


class Overloaded(DiscoError):
    """``retry_after`` is in seconds."""

    code = "overloaded"
    retryable = True

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message, retry_after)
        self.retry_after = retry_after


class RateLimited(Overloaded):
    code = "rate_limit_exceeded"


class QuotaExceeded(DiscoError):
    """``retry_after``: seconds until there is a new budget, None where only the operator can grant one."""

    code = "insufficient_quota"

    def __init__(self, message: str, retry_after: float | None = None) -> None:
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
