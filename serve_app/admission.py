"""How many streams run at once, and what their requests are called."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from serve_app.core.errors import Overloaded

_REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Admission:
    """Counts the streams of one router replica."""

    def __init__(self, max_streams: int) -> None:
        self._max_streams = max_streams
        self.running = 0

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Held as long as the stream. Raises Overloaded where none is free."""
        if self.running >= self._max_streams:
            raise Overloaded(f"{self._max_streams} streams are running here; try again shortly", 1.0)
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1


def request_id(given: str | None) -> str:
    """The x-request-id (the proxy adds one where there is none) if it is harmless in a log, else a new one."""
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given
    return uuid.uuid4().hex
