"""`disco top`: what a running service does, again and again."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, dataclass, field

import aiohttp
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from serve_app.cli.complaints import BadArgument, complain, named_server
from serve_app.cli.exits import INTERRUPTED, OK
from serve_app.cli.live_text import printable
from serve_app.cli.overview import Overview, look
from serve_app.cli.top_view import render
from serve_app.client.errors import CallFailed
from serve_app.client.server import Server, open_session

#: Lines of the screen that are not streams, about.
_FRAME = 18
#: Streams that are listed where there is no screen to fill.
_LISTED = 20


@dataclass(frozen=True, slots=True)
class TopOptions:
    """``every``: seconds between two looks. ``once``: one look. ``as_json``: one look, as JSON."""

    url: str
    key: str | None = field(repr=False)
    key_env: str | None
    every: float
    once: bool
    as_json: bool


def top(options: TopOptions, console: Console) -> int:
    """Until Ctrl-C, which is how one leaves what is shown again and again; the exit code."""
    once = options.once or options.as_json or not console.is_terminal
    try:
        server = named_server(options.url, options.key, options.key_env, "--url")
        asyncio.run(_show(options, server, console, once=once))
    except KeyboardInterrupt:
        return INTERRUPTED if once else OK
    except (CallFailed, BadArgument) as failure:
        return complain(failure)
    return OK


async def _show(options: TopOptions, server: Server, console: Console, *, once: bool) -> None:
    async with open_session(server) as session:
        now = await look(session, server)
        if options.as_json:
            console.out(json.dumps(asdict(now), indent=1), highlight=False)
        elif once:
            console.print(render(now, _LISTED))
        else:
            await _watch(options, session, server, now, console)


async def _watch(
    options: TopOptions, session: aiohttp.ClientSession, server: Server, now: Overview, console: Console
) -> None:
    """A service that stops answering leaves its last state on the screen, and what is wrong above it."""
    trouble = Text(f"{server.root}; Ctrl-C leaves", "dim")
    with Live(console=console, screen=True, auto_refresh=False) as screen:
        while True:
            screen.update(Group(trouble, "", render(now, max(1, console.height - _FRAME))), refresh=True)
            await asyncio.sleep(options.every)
            try:
                now = await look(session, server)
                trouble = Text(f"{server.root}; Ctrl-C leaves", "dim")
            except CallFailed as failure:
                trouble = Text(printable(f"{failure.message}; this was the last state"), "red")
