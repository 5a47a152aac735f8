"""`disco profile`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from serve_app.cli.screen import screen


def profile(
    endpoint: Annotated[str, typer.Argument(help="Name of an endpoint of the configuration.")],
    config: Annotated[str, typer.Option(help="A file, or a shipped configuration.")] = "disco",
    output: Annotated[
        Optional[Path],  # noqa: UP045 - typer reads it
        typer.Option(help="Where the profile goes; ENDPOINT.profile.json here if not given."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the profile instead of a table.")] = False,
) -> None:
    """Measure how fast an endpoint is and what its tokens take; write it down for the planner."""
    from serve_app.cli.profiling import ProfileOptions
    from serve_app.cli.profiling import profile as run

    options = ProfileOptions(endpoint=endpoint, config=config, output=output, as_json=json)
    raise typer.Exit(run(options, screen()))
