"""`disco`: the command line."""

from __future__ import annotations

import asyncio
import platform
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from serve_app.cli.configfile import DEFAULT, BadConfiguration, Configuration, load
from serve_app.cli.exits import BAD_INPUT, FAILED, INTERRUPTED

app = typer.Typer(
    name="disco",
    help="One LLM text stream from a cloud and a device endpoint: raced, budgeted and migrated mid-stream.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
model = typer.Typer(help="Models that llama.cpp endpoints run.", no_args_is_help=True)
app.add_typer(model, name="model")

Port = Annotated[int | None, typer.Option(min=1, max=65535, help="Listen here instead of the file's port.")]
ConfigName = Annotated[str, typer.Argument(help="A YAML file, or the name of a shipped one.")]


class PinChoice(StrEnum):
    DEVICE_ONLY = "device_only"
    CLOUD_ONLY = "cloud_only"


@app.command("up")
def up_command(config: ConfigName = DEFAULT, port: Port = None) -> None:
    """Fetch what is missing, start the service on this machine, and say how to use it. Ctrl-C stops it."""
    from serve_app.cli.up import up

    console = Console()
    raise typer.Exit(up(_load(config, port, console), console))


@app.command("check")
def check_command(config: ConfigName = DEFAULT, port: Port = None) -> None:
    """Validate a configuration and say what it would do. Starts nothing."""
    from serve_app.cli.check import show

    console = Console()
    show(_load(config, port, console), console)


@app.command("chat")
def chat_command(
    prompt: Annotated[str, typer.Argument(help="What to ask.")],
    url: Annotated[str, typer.Option(help="Where the service is.")] = "http://127.0.0.1:8000",
    served_model: Annotated[str, typer.Option("--model", help="A served model's name.")] = "disco",
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer, in tokens.")] = None,
    pin: Annotated[PinChoice | None, typer.Option(help="Only ever use this side.")] = None,
    rate: Annotated[float | None, typer.Option(min=0.5, max=200, help="Reading speed, tokens per second.")] = None,
    report: Annotated[bool, typer.Option(help="Show what it took, below the answer.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Ask one question and watch the answer stream, each endpoint in its own colour."""
    from serve_app.cli.chat import ChatRequest, chat

    request = ChatRequest(url, prompt, served_model, max_tokens, pin.value if pin else None, rate, report)
    try:
        code = asyncio.run(chat(request, Console(), as_json=as_json))
    except KeyboardInterrupt:
        code = INTERRUPTED
    raise typer.Exit(code)


@app.command("version")
def version_command() -> None:
    """The versions that matter in a bug report."""
    console = Console()
    for package in ("disco-serve", "ray", "llama-cpp-python"):
        try:
            found = version(package)
        except PackageNotFoundError:
            found = "not installed"
        console.print(f"{package} {found}", highlight=False)
    console.print(f"Python {platform.python_version()} on {platform.platform()}", highlight=False)


@model.command("list")
def model_list() -> None:
    """The models that can be fetched by name, and which are here."""
    from actors.engines.models import KNOWN, resolve

    table = Table("name", "download", "licence")
    table.add_column("file", overflow="fold")
    for name, known in KNOWN.items():
        try:
            where = str(resolve(name))
        except FileNotFoundError:
            where = "not fetched"
        table.add_row(name, f"{known.megabytes} MB", known.licence, escape(where))
    Console().print(table)


@model.command("fetch")
def model_fetch(name: Annotated[str, typer.Argument(help="One of `disco model list`.")]) -> None:
    """Bring a model into this user's cache; its checksum is verified."""
    from actors.engines.models import FetchError, fetch

    console = Console()
    try:
        fetch(name, lambda line: console.print(escape(line), highlight=False, soft_wrap=True))
    except ValueError as error:
        console.print(f"[red]{escape(str(error))}[/]", soft_wrap=True)
        raise typer.Exit(BAD_INPUT) from None
    except FetchError as error:
        console.print(f"[red]{escape(str(error))}[/]", soft_wrap=True)
        raise typer.Exit(FAILED) from None


def _load(config: str, port: int | None, console: Console) -> Configuration:
    try:
        return load(config, port)
    except BadConfiguration as error:
        count = len(error.problems)
        heading = f"{error.source}: {count} problem{'s' if count > 1 else ''}"
        console.print(f"[red]{escape(heading)}[/]", highlight=False, soft_wrap=True)
        for problem in error.problems:
            console.print(f"  {escape(problem)}", highlight=False, soft_wrap=True)
        raise typer.Exit(BAD_INPUT) from None


if __name__ == "__main__":
    app()
