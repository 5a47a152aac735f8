"""`disco top`: its arguments."""

from __future__ import annotations

from typing import Annotated

import typer

from serve_app.cli.options import KeyEnvOption, KeyOption, UrlOption, finite
from serve_app.cli.screen import screen


def top(
    url: UrlOption = "http://127.0.0.1:8000",
    key: KeyOption = None,
    key_env: KeyEnvOption = None,
    every: Annotated[float, typer.Option(callback=finite, min=0.2, max=3600, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look once and leave.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Look once, as a JSON object.")] = False,
) -> None:
    """Watch a running DiSCo-Serve: endpoints, streams, budget and costs.

    Where the service has keys, it takes one with `scope: operator`; one with `scope: metrics` shows less.
    """
    from serve_app.cli.top import TopOptions
    from serve_app.cli.top import top as run

    options = TopOptions(url=url, key=key, key_env=key_env, every=every, once=once, as_json=json)
    raise typer.Exit(run(options, screen()))
