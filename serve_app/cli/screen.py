"""Standard output for people: as wide as their terminal; in a file or a pipe, wide enough for tables."""

from __future__ import annotations

import os

from rich.console import Console

#: Columns where there is no terminal to ask, and no ``COLUMNS``.
_UNBOUND = 160


def screen() -> Console:
    console = Console()
    if console.is_terminal or os.environ.get("COLUMNS", "").isdigit():
        return console
    return Console(width=_UNBOUND)
