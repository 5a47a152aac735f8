"""`disco chat`: its arguments."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer

from serve_app.cli.exits import BAD_INPUT
from serve_app.cli.options import KeyEnvOption, KeyOption, UrlOption, finite
from serve_app.cli.screen import screen


def chat(
    prompt: Annotated[
        str | None, typer.Argument(help="What to ask; without it, a conversation, or what standard input holds.")
    ] = None,
    url: UrlOption = "http://127.0.0.1:8000",
    model: Annotated[str | None, typer.Option(help="A served name; the first one if not given.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="The longest answer.")] = 256,
    temperature: Annotated[
        float | None,
        typer.Option(callback=finite, min=0, max=2, help="0.3 at a DiSCo-Serve if not given, else the server's own."),
    ] = None,
    pin: Annotated[
        Literal["device_only", "cloud_only"] | None, typer.Option(help="Never leave endpoints of this kind.")
    ] = None,
    rate: Annotated[float | None, typer.Option(callback=finite, help="Tokens per second that you read.")] = None,
    delivery: Annotated[
        Literal["eager", "paced"] | None, typer.Option(help="Tokens at once, or at your speed.")
    ] = None,
    key: KeyOption = None,
    key_env: KeyEnvOption = None,
    report: Annotated[bool, typer.Option(help="Say afterwards what happened.")] = True,
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead.")] = False,
) -> None:
    """Stream answers into the terminal, each endpoint in its own colour.

    Without a question it is a conversation: /help says what can be typed, and Ctrl-C cancels the running answer only.
    """
    from serve_app.cli.asking import ChatOptions

    if prompt is None and not sys.stdin.isatty():
        prompt = sys.stdin.read().strip()
        if not prompt:
            typer.echo("PROMPT: standard input is empty; give a question", err=True)
            raise typer.Exit(BAD_INPUT)
    if prompt is not None and not prompt.strip():
        typer.echo("PROMPT: is empty; give a question, or none to converse", err=True)
        raise typer.Exit(BAD_INPUT)
    if prompt is None and json:
        typer.echo("--json: needs a question; a conversation is for people", err=True)
        raise typer.Exit(BAD_INPUT)
    options = ChatOptions(
        prompt=prompt,
        url=url,
        model=model,
        max_tokens=max_tokens,
        temperature=temperature,
        pin=pin,
        rate=rate,
        delivery=delivery,
        key=key,
        key_env=key_env,
        report=report,
        as_json=json,
    )
    if prompt is None:
        from serve_app.cli.conversation import converse

        raise typer.Exit(converse(options, screen()))
    from serve_app.cli.chat import chat as run

    raise typer.Exit(run(options, screen()))
