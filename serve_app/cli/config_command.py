"""`disco config`: what is in force of a configuration, and what there is to configure."""

from __future__ import annotations

import json as json_format
from itertools import groupby
from typing import Annotated, Final

import typer
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from serve_app.cli.exits import BAD_INPUT
from serve_app.cli.screen import screen

#: Characters.
_VALUE_WIDTH: Final = 24

config = typer.Typer(help="What can be configured, and what is in force.", no_args_is_help=True)


@config.command()
def show(
    file: Annotated[str, typer.Argument(help="A file, or a shipped configuration.")] = "disco",
    changed: Annotated[bool, typer.Option("--changed", help="Only what the file itself says.")] = False,
    json: Annotated[bool, typer.Option("--json", help="An array of objects instead of a table.")] = False,
) -> None:
    """Every setting in force, defaults included, each with its meaning. Secrets are never shown."""
    from dataclasses import asdict

    from serve_app.cli.check import complain
    from serve_app.cli.configfile import BadConfiguration, load
    from serve_app.cli.settings_tree import InForce, in_force

    try:
        configuration = load(file, runs_here=False)
    except BadConfiguration as error:
        complain(error)
        raise typer.Exit(BAD_INPUT) from None
    port_given = "port" in configuration.document["http_options"]
    found = [
        InForce("http_options.host", configuration.host, True, "Where Serve listens; 127.0.0.1: this machine only."),
        InForce("http_options.port", configuration.port, port_given, "The port there."),
        *in_force(configuration.app, "args"),
        *in_force(configuration.live, "user_config"),
    ]
    chosen = [setting for setting in found if setting.given or not changed]
    if json:
        typer.echo(json_format.dumps([asdict(setting) for setting in chosen], indent=1))
        return
    rows = [(setting.path, _written(setting.value), setting.given, setting.meaning) for setting in chosen]
    screen().print(_page(rows))


@config.command()
def reference() -> None:
    """The page docs/configuration.md: every setting there is, its default and its meaning, in Markdown."""
    from serve_app.cli.config_reference import reference as page

    typer.echo(page(), nl=False)


def _written(value: object) -> str:
    return value if isinstance(value, str) and value else json_format.dumps(value, ensure_ascii=False)


def _page(rows: list[tuple[str, str, bool, str]]) -> RenderableType:
    """A table per level of the tree, all of the same shape."""
    parts: list[RenderableType] = []
    width = max((len(path.rpartition(".")[2]) for path, *_ in rows), default=0)
    for level, settings in groupby(rows, lambda row: row[0].rpartition(".")[0]):
        table = Table.grid(padding=(0, 2))
        table.add_column(width=width, overflow="fold")
        table.add_column(width=_VALUE_WIDTH, overflow="fold")
        table.add_column(overflow="fold", style="dim")
        for path, value, given, meaning in settings:
            table.add_row(path.rpartition(".")[2], Text(value, "green" if given else ""), Text(meaning))
        parts += [Text(level, "bold"), Padding(table, (0, 0, 1, 2))]
    return Group(*parts, Text("green: the file says so; the rest are defaults", "dim"))
