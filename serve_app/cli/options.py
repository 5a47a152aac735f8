"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

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
