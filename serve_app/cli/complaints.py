"""What a command says on stderr when it cannot go on, and the exit code that fits."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.text import Text

from serve_app.cli.exits import BAD_INPUT, EXIT_OF
from serve_app.cli.live_text import printable
from serve_app.client.errors import CallFailed, Cause
from serve_app.client.server import Server, key_in, server_at


class BadArgument(ValueError):
    """The message names the option and the remedy."""


#: What to do where a key is missing or unknown.
_NAME_A_KEY: Final = "name the variable that holds a key with --key-env"


def complain(failure: CallFailed | BadArgument, name_a_key: str = _NAME_A_KEY) -> int:
    """``name_a_key``: the remedy where a key is missing or unknown."""
    if isinstance(failure, BadArgument):
        return _say(str(failure), BAD_INPUT)
    return _say(failure.message + _remedy(failure, name_a_key), EXIT_OF[failure.cause])


def warn(message: str) -> None:
    Console(stderr=True).print(Text(printable(message), "yellow"), soft_wrap=True)


def named_server(url: str, key: str | None, key_env: str | None, option: str, key_option: str = "--key") -> Server:
    """``key_env``: the variable that holds the key. ``option``, ``key_option``: what the URL and the key are called.

    Raises ``BadArgument``.
    """
    try:
        server = server_at(url)
    except ValueError as error:
        raise BadArgument(f"{option}: {error}") from None
    try:
        server = server.with_key(key if key_env is None else key_in(key_env))
    except ValueError as error:
        raise BadArgument(f"{key_option if key_env is None else '--key-env'}: {error}") from None
    if server.exposes_key:
        warn(f"the key travels to {server.host} in clear; use https:// where others share the network")
    return server


def _say(message: str, code: int) -> int:
    Console(stderr=True).print(Text(printable(message), "red"), soft_wrap=True)
    return code


def _remedy(failure: CallFailed, name_a_key: str) -> str:
    if failure.cause is Cause.UNREACHABLE:
        return "; start the service with `disco up`, or say with --url where it is"
    if failure.status == 401:
        return f"; {name_a_key}"
    return ""
