"""Why `disco chat` has no answer to show."""

from __future__ import annotations


class ChatFailed(Exception):
    """``code`` is the exit code that fits."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message, code)
        self.message = message
        self.code = code


class Interrupted(ChatFailed):
    """It may pass: another connection may bring the rest. ``begun``: the answer had begun."""

    def __init__(self, message: str, code: int, *, begun: bool = False) -> None:
        super().__init__(message, code)
        self.begun = begun
