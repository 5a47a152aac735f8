"""An answer on the terminal while it is being written, each endpoint in its own colour."""

from __future__ import annotations

import re
from typing import Final

from rich.console import Console
from rich.text import Text

#: Okabe and Ito's palette, apart under every common colour blindness; these four can be read on black and on white.
PALETTE: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")

#: C0 without newline and tab, DEL, C1: what a terminal would obey. Lone surrogates, which no terminal can be sent.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")


def printable(text: str) -> str:
    """The text as a terminal may show it: newlines and tabs are the only controls left."""
    return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", _CONTROL.sub("", text))


class LiveText:
    """Prints pieces as they come and marks each seam; colours go by the order in which endpoints appear."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._colours: dict[str, str] = {}
        self._writer = ""
        self._at_line_start = True

    def begin(self) -> None:
        """Another answer: its first endpoint takes over from nobody."""
        self._writer = ""

    def write(self, piece: str, endpoint: str) -> None:
        """``endpoint`` is empty where the server does not say."""
        shown = printable(piece)
        if not shown:
            return
        if endpoint and self._writer and endpoint != self._writer:
            self._out(f" ┃{printable(self._writer)}→{printable(endpoint)}┃ ", "bold")
        self._writer = endpoint or self._writer
        self._out(shown, self._colour(self._writer))
        self._at_line_start = shown.endswith("\n")

    def end_line(self) -> None:
        if not self._at_line_start:
            self._out("\n", None)
            self._at_line_start = True

    def legend(self) -> Text:
        """Who wrote, by name and colour; empty where nobody was named."""
        parts = [Text.assemble(("■ ", colour), printable(name)) for name, colour in self._colours.items()]
        return Text("   ").join(parts)

    def _colour(self, endpoint: str) -> str | None:
        if not endpoint:
            return None
        return self._colours.setdefault(endpoint, PALETTE[len(self._colours) % len(PALETTE)])

    def _out(self, text: str, style: str | None) -> None:
        self._console.out(text, style=style, end="", highlight=False)
