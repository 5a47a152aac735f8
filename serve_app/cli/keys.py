"""`disco key new`: an API key, shown once, and the line of configuration that lets it in."""

from __future__ import annotations

from typing import Annotated

import typer

from serve_app.cli.exits import BAD_INPUT

keys = typer.Typer(help="API keys of a service.", no_args_is_help=True)


@keys.callback()
def group() -> None:
    """Without this, typer would take the only command for the whole."""


@keys.command()
def new(name: Annotated[str, typer.Argument(help="Whose it is; logs and reports show this plain word.")]) -> None:
    """Make a key. It is stored nowhere: its owner gets the first line, the configuration the second."""
    from serve_app.access_settings import is_key_name
    from serve_app.keys import new_key, sha256_of

    if not is_key_name(name):
        typer.echo("NAME: must be a plain word of up to 32 letters, digits, dots, dashes and underscores", err=True)
        raise typer.Exit(BAD_INPUT)
    key = new_key()
    typer.echo("The key, shown only this once, and its line under access.keys or in the keys_file:", err=True)
    typer.echo(key)
    typer.echo(f'{name}: {{sha256: "{sha256_of(key.encode())}"}}')
