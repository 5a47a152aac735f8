"""Why a server gave no answer, or not all of it."""

from __future__ import annotations

from enum import StrEnum


class Cause(StrEnum):
    """UNREACHABLE: nobody listens there. REFUSED: the request, or who asked, was not good enough. FAILED: the rest."""

    UNREACHABLE = "unreachable"
    REFUSED = "refused"
    FAILED = "failed"


class CallFailed(Exception):
    """``code``: the server's word for it, where it gave one; ``status``: of HTTP, where there was one."""

    def __init__(self, message: str, cause: Cause, code: str = "", status: int | None = None) -> None:
        super().__init__(message, cause, code, status)
        self.message = message
        self.cause = cause
        self.code = code
        self.status = status


class Interrupted(CallFailed):
    """It may pass: another connection may bring the rest. ``begun``: the answer had begun."""

    def __init__(
        self, message: str, cause: Cause, code: str = "", status: int | None = None, *, begun: bool = False
    ) -> None:
        super().__init__(message, cause, code, status)
        self.begun = begun
