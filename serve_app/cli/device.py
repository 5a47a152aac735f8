"""`disco device`: registered devices of a running service, and the heartbeats of the one that this runs on."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

import aiohttp
from rich.console import Console
from rich.table import Table
from rich.text import Text

from serve_app.cli.complaints import BadArgument, complain, warn
from serve_app.cli.device_state import device_state
from serve_app.cli.exits import INTERRUPTED, OK
from serve_app.cli.live_text import printable
from serve_app.client.calls import call, json_of
from serve_app.client.errors import CallFailed, Cause
from serve_app.client.server import Server, key_in, open_session, server_at

T = TypeVar("T")

_CREATED, _NOTHING = 201, 204

#: Seconds for a server to say how many answers it has under way.
_PATIENCE: Final = 5.0


def run(action: Coroutine[Any, Any, None], interrupted: int = INTERRUPTED, name_a_key: str | None = None) -> int:
    """The exit code; complaints go to stderr. ``interrupted``: the code of Ctrl-C. ``name_a_key``: as ``complain``."""
    try:
        asyncio.run(action)
    except KeyboardInterrupt:
        return interrupted
    except (CallFailed, BadArgument) as failure:
        return complain(failure) if name_a_key is None else complain(failure, name_a_key)
    return OK


def measured(profile: Path) -> Any:
    """What `disco profile` wrote. Raises ``BadArgument``."""
    try:
        return json.loads(profile.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        raise BadArgument("--profile: cannot be read; name a file that `disco profile` wrote") from None


def named_key(variable: str) -> str:
    """The key that the environment variable holds. Raises ``BadArgument``."""
    try:
        return key_in(variable)
    except ValueError as error:
        raise BadArgument(f"--its-key-env: {error}") from None


async def add(server: Server, registration: dict[str, Any], console: Console) -> None:
    """Print the device's token, and nothing else, so that it can be piped."""
    async with (
        open_session(server) as session,
        call(session, "POST", f"{server.root}/disco/devices", registration, (_CREATED,)) as response,
    ):
        token = _part(json_of(await response.read()), "token", str)
    console.out(token, highlight=False)


def _part(document: Any, name: str, kind: type[T]) -> T:
    part = document.get(name) if isinstance(document, dict) else None
    if not isinstance(part, kind):
        raise CallFailed("the server says something else than a DiSCo-Serve of this version", Cause.FAILED)
    return part


async def remove(server: Server, name: str) -> None:
    async with (
        open_session(server) as session,
        call(session, "DELETE", f"{server.root}/disco/devices/{quote(name, '')}", None, (_NOTHING,)),
    ):
        """Nothing is said."""


async def show(server: Server, console: Console, *, as_json: bool) -> None:
    async with (
        open_session(server) as session,
        call(session, "GET", f"{server.root}/disco/devices") as response,
    ):
        devices = _part(json_of(await response.read()), "devices", list)
    if as_json:
        console.out(json.dumps(devices, indent=1), highlight=False)
        return
    if not devices:
        console.print("no device has joined; `disco device add` registers one", highlight=False, soft_wrap=True)
        return
    table = Table("device", "state", "owners", "address", "says")
    for device in devices:
        said = device["report"] or {}
        words = [device["name"], device["reason"], ", ".join(device["owners"]), device["address"]]
        table.add_row(*(Text(printable(word)) for word in words), ", ".join(f"{k} {v}" for k, v in said.items()))
    console.print(table)


async def report(
    server: Server,
    name: str,
    every: float | None,
    local: str | None,
    state: Callable[[], dict[str, Any]] = device_state,
) -> None:
    """``every``: seconds between two heartbeats; None: one, and its failure is the command's. ``local``: the root URL
    of the device's own server, which says how busy it is; that it does not is told once."""
    mute = False
    async with open_session(server) as session:
        while True:
            began = time.monotonic()
            said = await asyncio.to_thread(state)
            if local is not None:
                try:
                    said["load"], mute = await busy(local), False
                except CallFailed as failure:
                    if not mute:
                        warn(f"--server: {failure.message}; the load is left out until it says")
                    mute = True
            try:
                url = f"{server.root}/disco/devices/{quote(name, '')}/report"
                async with call(session, "POST", url, said, (_NOTHING,)):
                    """It is heard."""
            except CallFailed as failure:
                # Who is not known, or not let in, will not be next time either.
                if every is None or failure.cause is Cause.REFUSED:
                    raise
                warn(f"not heard: {failure.message}")
            if every is None:
                return
            await asyncio.sleep(max(0.0, every - (time.monotonic() - began)))


def local_server(url: str) -> str:
    """Its root. Raises ``BadArgument``."""
    try:
        return server_at(url).root
    except ValueError as error:
        raise BadArgument(f"--server: {error}") from None


async def busy(local: str) -> int:
    """Answers under way at a llama-server, by its /slots. Raises ``CallFailed`` where it does not say."""
    url = f"{local}/slots"
    # A session of its own: the device's token is not the local server's business.
    async with aiohttp.ClientSession() as session, call(session, "GET", url, total=_PATIENCE) as response:
        slots = json_of(await response.read())
    if not isinstance(slots, list):
        raise CallFailed(f"{url} says something else than a llama-server", Cause.FAILED)
    return sum(1 for slot in slots if isinstance(slot, dict) and slot.get("is_processing"))
