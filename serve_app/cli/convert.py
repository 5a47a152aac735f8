"""`disco model convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.markup import escape

from serve_app.cli.exits import FAILED
from serve_app.cli.screen import screen


def convert(
    source: Annotated[str, typer.Argument(help="A known model, a GGUF file, or a folder with a model.")],
    folder: Annotated[
        Optional[Path],  # noqa: UP045 - typer reads it
        typer.Argument(help="A new folder; for a known model, if not given, where engines look for it."),
    ] = None,
) -> None:
    """Make a folder that vLLM serves: weights, configuration and tokenizer."""
    from actors.engines.convert import ConvertError
    from actors.engines.convert import convert as run

    console = screen()
    try:
        run(source, folder, lambda line: console.print(escape(line), highlight=False, soft_wrap=True))
    except ConvertError as error:
        console.print(escape(str(error)), style="red", soft_wrap=True)
        raise typer.Exit(FAILED) from None
