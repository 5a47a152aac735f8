"""Text that is safe to show: whole characters only, and nothing that may turn out to be a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class Utf8Assembler:
    """Bytes in, whole characters out. Bytes that can never become a character turn into U+FFFD, as UTF-8 demands."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> str:
        return self._decoder.decode(data)

    @property
    def pending(self) -> int:
        """Bytes held back because their character is not whole yet."""
        return len(self._decoder.getstate()[0])


class StopFilter:
    """Releases text up to, never into, a stop string; holds back what may still become one.

    The match that *ends* first wins, so the result does not depend on how the text was cut into chunks.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.matched = False

    @property
    def held(self) -> int:
        """Characters held back."""
        return len(self._held)

    def feed(self, text: str) -> str:
        """Add ``text`` and return what became releasable. After a match nothing is released any more."""
        if self.matched:
            return ""
        if not self._stops:
            return text
        candidate = self._held + text
        hit = self._first_match(candidate)
        if hit is not None:
            self.matched, self._held = True, ""
            return candidate[:hit]
        keep = self._open_prefix(candidate)
        self._held = candidate[len(candidate) - keep :]
        return candidate[: len(candidate) - keep]

    def flush(self) -> str:
        """The stream ended: what was held can no longer become a stop string."""
        rest, self._held = self._held, ""
        return rest

    def _first_match(self, text: str) -> int | None:
        hits = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        return min(hits)[1] if hits else None

    def _open_prefix(self, text: str) -> int:
        longest = max(len(stop) for stop in self._stops) - 1
        for size in range(min(longest, len(text)), 0, -1):
            tail = text[-size:]
            if any(stop.startswith(tail) for stop in self._stops):
                return size
        return 0
