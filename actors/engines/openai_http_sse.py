"""Server-sent events out of bytes that arrive in any pieces (WHATWG HTML, section 9.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MOST_BYTES: Final = 1 << 20
"""Of one event. A server that never ends a line or an event must not fill the memory."""

_BOM: Final = b"\xef\xbb\xbf"


class EventTooLong(Exception):
    """An event grew beyond ``MOST_BYTES``."""


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """``type`` and ``id`` are empty where the event has none; an id is not carried over to the next event."""

    data: str
    type: str = ""
    id: str = ""


class EventParser:
    """Feeds on bytes; gives every event as soon as its last line is there, wherever the bytes were cut.

    Two liberties beside the standard, for servers that take some themselves. An event that the end of the stream left
    without its blank line is given, not discarded. And a line that is a JSON object, where a field should be, is kept
    in ``stray``: some servers report an error that way.
    """

    def __init__(self) -> None:
        self.stray: str | None = None
        self._rest = bytearray()
        self._searched = 0
        self._after_cr = False
        self._at_start = True
        self._data: list[str] = []
        self._type = self._id = ""
        self._size = 0

    def feed(self, piece: bytes) -> list[ServerEvent]:
        """The events that ``piece`` completes. Raises ``EventTooLong``."""
        self._rest += piece
        if self._at_start:
            if len(self._rest) < len(_BOM) and _BOM.startswith(self._rest):
                return []
            self._at_start = False
            if self._rest.startswith(_BOM):
                del self._rest[: len(_BOM)]
        events = []
        while (line := self._next_line()) is not None:
            event = self._take(line)
            if event is not None:
                events.append(event)
        if self._size + len(self._rest) > MOST_BYTES:
            raise EventTooLong
        return events

    def close(self) -> list[ServerEvent]:
        """The stream ended: at most one event, whose blank line never came."""
        line, self._rest = bytes(self._rest), bytearray()
        event = self._take(line) if line else None
        event = event or self._take(b"")
        return [] if event is None else [event]

    def _next_line(self) -> bytes | None:
        """A line ends with CR, LF or CR LF. After a CR it is given at once; should an LF follow, it is swallowed."""
        if self._after_cr and self._rest:
            self._after_cr = False
            if self._rest[0] == 0x0A:
                del self._rest[0]
        ends = [at for mark in (b"\n", b"\r") if (at := self._rest.find(mark, self._searched)) >= 0]
        if not ends:
            self._searched = len(self._rest)
            return None
        end = min(ends)
        line, self._after_cr = bytes(self._rest[:end]), self._rest[end] == 0x0D
        del self._rest[: end + 1]
        self._searched = 0
        return line

    def _take(self, line: bytes) -> ServerEvent | None:
        if not line:
            return self._dispatch()
        self._size += len(line) + 1
        text = line.decode("utf-8", "replace")
        field, _, value = text.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._type = value
        elif field == "id":
            self._id = value
        elif text.startswith("{"):
            self.stray = text
        return None

    def _dispatch(self) -> ServerEvent | None:
        event = ServerEvent("\n".join(self._data), self._type, self._id) if self._data else None
        self._data, self._type, self._id, self._size = [], "", "", 0
        return event
