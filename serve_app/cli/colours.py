"""One colour per endpoint, given out in the order in which endpoints appear."""

from __future__ import annotations

from typing import Final

PALETTE: Final = ("cyan", "yellow", "green", "magenta", "blue", "red")


class Colours:
    def __init__(self) -> None:
        self._given: dict[str, str] = {}

    def of(self, endpoint: str) -> str:
        return self._given.setdefault(endpoint, PALETTE[len(self._given) % len(PALETTE)])
