"""`disco chat`: one question to a running service, its answer live, and what became of it."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
from rich.console import Console
from rich.text import Text

from actors.engines.openai_http_sse import EventParser, EventTooLong, ServerEvent
from serve_app.auth import is_loopback
from serve_app.cli.chat_errors import ChatFailed, Interrupted
from serve_app.cli.defaults import TEMPERATURE
from serve_app.cli.exits import BAD_INPUT, FAILED, INTERRUPTED, OK, UNREACHABLE
from serve_app.cli.live_text import LiveText, printable
from serve_app.cli.report_view import render
from serve_app.cli.resume import Shown, resuming

#: Seconds. How long an answer may take is the server's to say, so nothing but the connection is limited here.
_CONNECT: Final = 10.0

#: ``write(text, endpoint)``.
Write = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """``rate``: tokens per second that the reader reads; None leaves it, as ``pin`` and ``delivery``, to the server."""

    prompt: str
    url: str = "http://127.0.0.1:8000"
    model: str | None = None
    max_tokens: int = 256
    temperature: float = TEMPERATURE
    pin: str | None = None
    rate: float | None = None
    delivery: str | None = None
    key: str | None = field(default=None, repr=False)
    report: bool = True
    as_json: bool = False


def chat(options: ChatOptions, console: Console) -> int:
    """Print the answer to ``console`` and complaints to stderr; the exit code."""
    live, shown = LiveText(console), Shown()

    def write(text: str, endpoint: str) -> None:
        if not options.as_json:
            live.write(text, endpoint)

    try:
        report = asyncio.run(_converse(options, shown, write))
    except KeyboardInterrupt:
        live.end_line()
        return INTERRUPTED
    except ChatFailed as failure:
        live.end_line()
        Console(stderr=True).print(Text(printable(failure.message), "red"), soft_wrap=True)
        return failure.code
    resumed = {"resumed": shown.resumed} if shown.resumed else {}
    if options.as_json:
        # Escapes for everything but ASCII: exact, and no terminal obeys it.
        console.out(json.dumps({"text": shown.text, "report": report} | resumed), highlight=False)
        return OK
    live.end_line()
    if legend := live.legend():
        console.print(legend)
    if resumed:
        times = "once" if shown.resumed == 1 else f"{shown.resumed} times"
        note = (
            f"the connection broke {times}; the answer went on from what was shown, and the report is of its last part"
        )
        Console(stderr=True).print(Text(note, "yellow"), soft_wrap=True)
    if options.report and report is not None:
        console.print(render(report))
    return OK


async def _converse(options: ChatOptions, shown: Shown, write: Write) -> dict[str, Any] | None:
    """The report, where the server gives one; of an answer that was resumed, that of its last part."""
    base = _base(options)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT)
    # The user's proxy settings are for the Internet, not for a server on this machine.
    trust_env = not is_loopback(urlsplit(base).hostname or "")
    async with aiohttp.ClientSession(timeout=timeout, trust_env=trust_env, headers=_headers(options)) as session:
        model = options.model or await _first_model(session, base)

        async def ask(body: dict[str, Any]) -> dict[str, Any] | None:
            async with _answer(session, "POST", f"{base}/v1/chat/completions", body) as response:
                return await _read(response, shown, write)

        return await resuming(ask, _body(options, model), shown)


def _base(options: ChatOptions) -> str:
    if options.rate is not None and not math.isfinite(options.rate):
        raise ChatFailed("--rate: must be a finite number of tokens per second", BAD_INPUT)
    try:
        parts = urlsplit(options.url)
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise ChatFailed("--url: must be like http://127.0.0.1:8000", BAD_INPUT)
    return options.url.rstrip("/").removesuffix("/v1")


def _headers(options: ChatOptions) -> dict[str, str]:
    if options.key is None:
        return {}
    if not options.key.isascii() or not options.key.isprintable():
        raise ChatFailed("--key: no API key has such characters", BAD_INPUT)
    return {"Authorization": f"Bearer {options.key}"}


def _body(options: ChatOptions, model: str) -> dict[str, Any]:
    wishes = {"pin": options.pin, "consumption_rate": options.rate, "delivery": options.delivery}
    return {
        "model": model,
        "messages": [{"role": "user", "content": options.prompt}],
        "max_tokens": options.max_tokens,
        "temperature": options.temperature,
        "stream": True,
        "disco": {"report": True} | {name: value for name, value in wishes.items() if value is not None},
    }


async def _first_model(session: aiohttp.ClientSession, base: str) -> str:
    async with _answer(session, "GET", f"{base}/v1/models") as response:
        document = _json(await response.read())
    try:
        return str(document["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        raise ChatFailed(f"{base} serves no model that it would name; give one with --model", FAILED) from None


@asynccontextmanager
async def _answer(
    session: aiohttp.ClientSession, method: str, url: str, body: dict[str, Any] | None = None
) -> AsyncIterator[aiohttp.ClientResponse]:
    """A response with status 200. Raises ``ChatFailed`` for any other, and ``Interrupted`` where it breaks off."""
    try:
        response = await session.request(method, url, json=body, allow_redirects=False)
    except (aiohttp.ClientError, TimeoutError) as error:
        cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
        reason = str(cause) or type(cause).__name__
        remedy = "start the service with `disco up`, or say with --url where it is"
        raise Interrupted(f"no service answers at {url}: {reason}; {remedy}", UNREACHABLE) from None
    async with response:
        try:
            if response.status != 200:
                raise _refused(response.status, await response.read())
            yield response
        except (aiohttp.ClientError, TimeoutError):
            raise Interrupted("the connection broke before the answer was complete", FAILED, begun=True) from None


def _refused(status: int, body: bytes) -> ChatFailed:
    error = _error(_json(body)) or "this is no answer of the service's"
    if status >= 500:
        return Interrupted(f"HTTP {status}: {error}", FAILED)
    return ChatFailed(f"HTTP {status}: {error}", BAD_INPUT if status >= 400 else FAILED)


def _error(document: Any) -> str | None:
    """What the error object says, with the field it blames; None where there is no such object."""
    error = document.get("error") if isinstance(document, dict) else None
    if not isinstance(error, dict):
        return None
    message, param = str(error.get("message")), error.get("param")
    return f"{message} ({param})" if param and str(param) not in message else message


async def _read(response: aiohttp.ClientResponse, shown: Shown, write: Write) -> dict[str, Any] | None:
    parser = EventParser()
    report: dict[str, Any] | None = None
    async for piece in response.content.iter_any():
        for received in _fed(parser, piece):
            if received.data == "[DONE]":
                return report
            event = _json(received.data.encode("utf-8"))
            failure = _error(event)
            if failure is not None:
                raise ChatFailed(f"the answer could not be completed: {failure}", FAILED)
            if not isinstance(event, dict):
                raise ChatFailed("the server sent an event that is no JSON object", FAILED)
            extension = event.get("disco")
            if not isinstance(extension, dict):
                extension = {}
            if "policy" in extension:
                report = extension
            text = _content(event)
            shown.take(text, received.id)
            write(text, str(extension.get("endpoint", "")))
    raise Interrupted("the connection ended before the answer was complete", FAILED, begun=True)


def _fed(parser: EventParser, piece: bytes) -> list[ServerEvent]:
    try:
        return parser.feed(piece)
    except EventTooLong:
        raise ChatFailed("the server sent an event of more than a mebibyte", FAILED) from None


def _content(event: dict[str, Any]) -> str:
    """The new text of a chunk; one that only closes the answer has none."""
    try:
        content = event["choices"][0]["delta"]["content"]
    except (KeyError, IndexError, TypeError):
        return ""
    return content if isinstance(content, str) else ""


def _json(body: bytes) -> Any:
    """None where it is no JSON."""
    try:
        return json.loads(body)
    except ValueError:
        return None
