"""`disco traces`: where the public measurements are, and whether a folder holds them."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from serve_app.cli.exits import BAD_INPUT, OK
from serve_app.sim.catalogue import SERVEGEN, SOURCES, State, check_folder
from serve_app.sim.tables import BadInput


def traces(folder: Path | None, console: Console) -> int:
    """Tell where the files are, or judge those in ``folder``; the exit code."""
    if folder is None:
        console.print(_sources())
        return OK
    try:
        checked = check_folder(folder)
    except BadInput as error:
        Console(stderr=True).print(escape(str(error)), style="red", highlight=False, soft_wrap=True)
        return BAD_INPUT
    colours = {State.SAME: "green", State.USABLE: "yellow", State.ABSENT: "dim", State.BROKEN: "red"}
    for item in checked:
        line = Text.assemble((f"{item.state.value:<21}", colours[item.state]), f"{item.file}: {item.said}")
        console.print(line, soft_wrap=True)
    return BAD_INPUT if any(item.state is State.BROKEN for item in checked) else OK


def _sources() -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for source in SOURCES:
        table.add_row("file", Text(source.file, "bold"))
        table.add_row("from", source.url)
        table.add_row("licence", source.licence)
        table.add_row("columns", ", ".join(source.columns))
        table.add_row("content", source.extract or "the project's own file, renamed")
        table.add_row("rows", f"{source.rows}, SHA-256 {source.sha256}")
        table.add_row()
    table.add_row("folder", Text(f"{SERVEGEN.folder}/", "bold"))
    table.add_row("from", SERVEGEN.url)
    table.add_row("licence", SERVEGEN.licence)
    table.add_row("content", f"{', '.join(SERVEGEN.sha256)}: the project's own client traces, without a header")
    table.add_row()
    hint = "Put the files into one folder; `disco traces FOLDER` checks them, `disco simulate --data FOLDER` uses them."
    return Group(table, Text(hint))
