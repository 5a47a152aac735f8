"""`disco device`: its arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from serve_app.cli.options import KeyEnvOption, UrlOption, finite
from serve_app.cli.screen import screen
from serve_app.client.server import Server

device = typer.Typer(help="Devices that join a running service.", no_args_is_help=True)

_HOME = "http://127.0.0.1:8000"
_IF_UNKNOWN = "give what `disco device add` printed with --token, or in DISCO_DEVICE_TOKEN"

OperatorKey = Annotated[
    str | None,
    typer.Option(envvar="DISCO_API_KEY", help="A key with `scope: operator`.", metavar="KEY"),
]
Token = Annotated[
    str | None,
    typer.Option(envvar="DISCO_DEVICE_TOKEN", help="What `add` printed; or a key with `scope: device`.", metavar="KEY"),
]
NameArgument = Annotated[str, typer.Argument(help="The device's name.")]


@device.command()
def add(
    name: NameArgument,
    base_url: Annotated[str, typer.Argument(help="Its server, such as http://192.168.1.20:8080/v1.")],
    model: Annotated[str, typer.Argument(help="The server's name for the model.")],
    owner: Annotated[list[str], typer.Option(help="Name of an API key that may use it. Several times for several.")],
    serves: Annotated[
        list[str] | None, typer.Option(help="A served name to take part in; all that name no endpoints if not given.")
    ] = None,
    slots: Annotated[int, typer.Option(min=1, max=1024, help="Answers at once.")] = 1,
    prior: Annotated[str | None, typer.Option(help="A shipped profile to believe in at first.")] = None,
    profile: Annotated[Path | None, typer.Option(help="The same, as `disco profile` wrote it.")] = None,
    billion: Annotated[
        float | None, typer.Option(callback=finite, min=0, help="Parameters of its model, for its energy's price.")
    ] = None,
    its_key_env: Annotated[
        str | None, typer.Option(help="Name of the environment variable with its server's own key.", metavar="NAME")
    ] = None,
    plaintext_key: Annotated[
        bool, typer.Option("--plaintext-key", help="That key may travel over http:// beyond this machine.")
    ] = False,
    url: UrlOption = _HOME,
    key: OperatorKey = None,
    key_env: KeyEnvOption = None,
) -> None:
    """Register the server on a device, and print the token with which it reports."""
    from serve_app.cli.complaints import BadArgument, complain
    from serve_app.cli.device import add as register
    from serve_app.cli.device import measured, named_key, run

    registration: dict[str, Any] = {"name": name, "base_url": base_url, "model": model, "owners": owner}
    registration |= {"serves": serves or [], "slots": slots, "prior": prior, "plaintext_key": plaintext_key}
    if billion is not None:
        registration["prices"] = {"parameters_billion": billion}
    try:
        registration["profile"] = None if profile is None else measured(profile)
        registration["api_key"] = None if its_key_env is None else named_key(its_key_env)
    except BadArgument as error:
        raise typer.Exit(complain(error)) from None
    raise typer.Exit(run(register(_server(url, key, key_env), registration, screen())))


@device.command("list")
def show(
    url: UrlOption = _HOME,
    key: OperatorKey = None,
    key_env: KeyEnvOption = None,
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Say which devices have joined, and how they are."""
    from serve_app.cli.device import run
    from serve_app.cli.device import show as listing

    raise typer.Exit(run(listing(_server(url, key, key_env), screen(), as_json=json)))


@device.command()
def remove(name: NameArgument, url: UrlOption = _HOME, key: OperatorKey = None, key_env: KeyEnvOption = None) -> None:
    """Remove a registered device; its streams go on elsewhere."""
    from serve_app.cli.device import remove as forget
    from serve_app.cli.device import run

    raise typer.Exit(run(forget(_server(url, key, key_env), name)))


@device.command()
def report(
    name: NameArgument,
    url: UrlOption = _HOME,
    token: Token = None,
    every: Annotated[
        float, typer.Option(callback=finite, min=0.5, max=3600, help="Seconds between two heartbeats.")
    ] = 10.0,
    once: Annotated[bool, typer.Option("--once", help="One heartbeat, and leave.")] = False,
    server: Annotated[str | None, typer.Option(help="The device's own llama-server, to tell its load.")] = None,
) -> None:
    """Tell a service, from the device, its battery, plug and temperature, until Ctrl-C."""
    from serve_app.cli.complaints import BadArgument, complain
    from serve_app.cli.device import local_server, run
    from serve_app.cli.device import report as tell
    from serve_app.cli.exits import INTERRUPTED, OK

    try:
        local = None if server is None else local_server(server)
    except BadArgument as error:
        raise typer.Exit(complain(error)) from None
    telling = tell(_server(url, token, None, "--token"), name, None if once else every, local)
    # Ctrl-C is how one leaves what goes on for ever.
    raise typer.Exit(run(telling, INTERRUPTED if once else OK, _IF_UNKNOWN))


def _server(url: str, key: str | None, key_env: str | None, key_option: str = "--key") -> Server:
    from serve_app.cli.complaints import BadArgument, complain, named_server

    try:
        return named_server(url, key, key_env, "--url", key_option)
    except BadArgument as error:
        raise typer.Exit(complain(error)) from None
