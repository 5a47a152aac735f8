"""Server-sent events out of bytes that arrive in any pieces."""

from __future__ import annotations


class EventReader:
    """Feeds on bytes and gives the ``data`` of every event that is whole."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []

    def feed(self, piece: bytes) -> list[str]:
        events = []
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for raw in lines:
            line = raw.removesuffix(b"\r").decode("utf-8", "replace")
            field, _, value = line.partition(":")
            if field == "data":
                self._data.append(value.removeprefix(" "))
            elif not line and self._data:
                events.append("\n".join(self._data))
                self._data.clear()
        return events
