"""`disco chat`: one question, its answer as it streams, and what it took."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from serve_app.cli.colours import Colours
from serve_app.cli.exits import FAILED, OK, UNREACHABLE
from serve_app.cli.report_view import report_view
from serve_app.cli.sse import EventReader

#: Seconds to connect. A server under load may take its time with everything else; Ctrl-C ends that.
CONNECT = 5.0


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """``rate``: r_c, tokens per second; None leaves it to the server."""

    url: str
    prompt: str = field(repr=False)
    model: str = "disco"
    max_tokens: int | None = None
    pin: str | None = None
    rate: float | None = None
    report: bool = True

    def body(self) -> dict[str, Any]:
        options: dict[str, Any] = {"report": True}
        if self.pin is not None:
            options["pin"] = self.pin
        if self.rate is not None:
            options["consumption_rate"] = self.rate
        body: dict[str, Any] = {
            "model": self.model,
            "stream": True,
            "messages": [{"role": "user", "content": self.prompt}],
            "disco": options,
        }
        if self.max_tokens is not None:
            body["max_tokens"] = self.max_tokens
        return body


class ServerError(Exception):
    """The server refused, or broke off the stream; its own words. ``lines``: ready to be shown."""

    def __init__(self, *lines: str) -> None:
        super().__init__(*lines)
        self.lines = lines


@dataclass(slots=True)
class Answer:
    """What has arrived so far. ``endpoint`` wrote the latest piece."""

    text: list[str] = field(default_factory=list)
    endpoint: str | None = None
    finish: str | None = None
    report: dict[str, Any] | None = None
    complete: bool = False


async def chat(request: ChatRequest, console: Console, *, as_json: bool = False) -> int:
    """The exit code. With ``as_json`` only one JSON object is printed, at the end."""
    view = _Quiet() if as_json else _Terminal(console)
    answer = Answer()
    problem: tuple[str, ...] = ()
    code = OK
    try:
        async for event in _events(request):
            _take(event, answer, view)
        if not answer.complete:
            problem, code = ("the stream was cut off before its end",), FAILED
    except ServerError as error:
        problem, code = error.lines, FAILED
    except (aiohttp.ClientConnectorError, aiohttp.InvalidURL, TimeoutError):
        problem = (
            f"nothing answers at {request.url}",
            "start the service with `make serve` or `disco up`, or give --url",
        )
        code = UNREACHABLE
    except aiohttp.ClientError as error:
        problem, code = (f"the connection broke: {type(error).__name__}",), FAILED
    if as_json:
        _print_json(answer, problem)
        return code
    view.end()
    if problem:
        console.print("\n  ".join(f"[red]{escape(line)}[/]" for line in problem), highlight=False, soft_wrap=True)
    elif answer.finish == "length":
        console.print("[dim](cut off by max_tokens)[/]")
    if request.report and answer.report is not None:
        console.print()
        console.print(report_view(answer.report, view.colours))
    return code


async def _events(request: ChatRequest) -> AsyncIterator[dict[str, Any] | None]:
    """Parsed events; None is the stream's own end mark."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT)
    url = f"{request.url.rstrip('/')}/v1/chat/completions"
    async with aiohttp.ClientSession(timeout=timeout) as session, session.post(url, json=request.body()) as response:
        if response.status != 200:
            raise ServerError(*_refusal(response.status, await response.text()))
        reader = EventReader()
        async for piece in response.content.iter_any():
            for data in reader.feed(piece):
                yield None if data == "[DONE]" else _parse(data)


def _parse(data: str) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except ValueError:
        raise ServerError("the server sent something that is not JSON; is this a DiSCo server?") from None
    if not isinstance(event, dict):
        raise ServerError("the server sent an event that is not an object; is this a DiSCo server?")
    if isinstance(event.get("error"), dict):
        raise ServerError(*_error_lines(event["error"]))
    return event


def _refusal(status: int, body: str) -> tuple[str, ...]:
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return (f"the server answered {status}; is this a DiSCo server?",)
    return _error_lines(error if isinstance(error, dict) else {"message": str(error)})


def _error_lines(error: dict[str, Any]) -> tuple[str, ...]:
    field_name = f" (field: {error['param']})" if error.get("param") else ""
    return (f"{error.get('message') or 'the server gave no reason'}{field_name}",)


def _take(event: dict[str, Any] | None, answer: Answer, view: _Terminal | _Quiet) -> None:
    if event is None:
        answer.complete = True
        return
    extension = event.get("disco")
    extension = extension if isinstance(extension, dict) else {}
    if "legs" in extension:
        answer.report = extension
    for choice in event.get("choices") or []:
        content = (choice.get("delta") or {}).get("content")
        if content:
            endpoint = extension.get("endpoint") or answer.endpoint
            if answer.endpoint is not None and endpoint is not None and endpoint != answer.endpoint:
                view.seam(answer.endpoint, endpoint)
            answer.endpoint = endpoint
            answer.text.append(content)
            view.piece(content, endpoint)
        answer.finish = choice.get("finish_reason") or answer.finish


class _Terminal:
    """Each endpoint's text in its own colour, a mark where the stream moved."""

    def __init__(self, console: Console) -> None:
        self.colours = Colours()
        self._console = console
        self._line_open = False

    def piece(self, content: str, endpoint: str | None) -> None:
        # A model's text is not markup, and must not move the cursor of whoever reads it.
        safe = "".join(sign if sign.isprintable() or sign in "\n\t" else "\ufffd" for sign in content)
        style = "" if endpoint is None else self.colours.of(endpoint)
        self._console.print(Text(safe, style=style), end="", soft_wrap=True)
        self._line_open = not safe.endswith("\n")

    def seam(self, source: str, target: str) -> None:
        self._console.print(Text(f"\u2502{source}\u2192{target}\u2502", style="reverse dim"), end="", soft_wrap=True)
        self._line_open = True

    def end(self) -> None:
        if self._line_open:
            self._console.print()


class _Quiet:
    def __init__(self) -> None:
        self.colours = Colours()

    def piece(self, content: str, endpoint: str | None) -> None: ...

    def seam(self, source: str, target: str) -> None: ...

    def end(self) -> None: ...


def _print_json(answer: Answer, problem: tuple[str, ...]) -> None:
    result = {
        "text": "".join(answer.text),
        "finish_reason": answer.finish,
        "disco": answer.report,
        "error": "; ".join(problem) or None,
    }
    sys.stdout.write(json.dumps(result, ensure_ascii=False) + "\n")
