"""How to get an optional part of this project."""

from __future__ import annotations

import shlex
import sys


def installing(*extras: str) -> str:
    """A command. It names the interpreter that runs this, whose own pip knows the project wherever it was installed
    from, a clone or an index, and looks for nothing but what the extras add."""
    return f"{shlex.quote(sys.executable)} -m pip install 'disco-serve[{','.join(extras)}]'"
