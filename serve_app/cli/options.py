"""Options that several commands have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import typer


def finite(value: float | Sequence[float] | None) -> float | Sequence[float] | None:
    """Callback of every option that takes a number: a range has no opinion on nan, and none without an end on inf."""
    numbers = () if value is None else (value,) if isinstance(value, float) else value
    if not all(map(math.isfinite, numbers)):
        raise typer.BadParameter("must be a finite number")
    return value


UrlOption = Annotated[str, typer.Option(help="Where the server is.")]
KeyOption = Annotated[
    str | None,
    typer.Option(
        envvar="DISCO_API_KEY",
        help="An API key. On a command line others can read it: use the variable.",
        metavar="KEY",
    ),
]
KeyEnvOption = Annotated[
    str | None, typer.Option(help="Name of another environment variable that holds the key.", metavar="NAME")
]
