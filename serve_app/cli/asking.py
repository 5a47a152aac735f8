"""Questions to one server, over one session, in the words that this server understands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from serve_app.cli.complaints import BadArgument, named_server
from serve_app.cli.defaults import TEMPERATURE
from serve_app.client.answers import chunks
from serve_app.client.calls import Served, call, served
from serve_app.client.errors import CallFailed
from serve_app.client.resume import Shown, resuming
from serve_app.client.server import Server, open_session

#: ``write(text, endpoint)``.
Write = Callable[[str, str], None]

Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """``prompt``: None for a conversation. ``rate``: tokens per second that the reader reads.

    None leaves rate, pin, delivery and temperature to the server; temperature to ``TEMPERATURE`` where that is this
    service. ``key_env``: the variable that holds the key, instead of ``key``.
    """

    prompt: str | None
    url: str = "http://127.0.0.1:8000"
    model: str | None = None
    max_tokens: int = 256
    temperature: float | None = None
    pin: str | None = None
    rate: float | None = None
    delivery: str | None = None
    key: str | None = field(default=None, repr=False)
    key_env: str | None = None
    report: bool = True
    as_json: bool = False

    @property
    def wishes(self) -> dict[str, Any]:
        """Of the ``disco`` object."""
        wishes = {"pin": self.pin, "consumption_rate": self.rate, "delivery": self.delivery}
        return {name: value for name, value in wishes.items() if value is not None}


class Asker:
    """Close it after use. ``wishes``, of the ``disco`` object, may change between questions."""

    def __init__(self, options: ChatOptions, session: aiohttp.ClientSession, server: Server, what: Served) -> None:
        self._options = options
        self._session = session
        self._server = server
        self._served = what
        self._limit = "max_tokens"
        self.wishes = options.wishes

    @staticmethod
    async def connect(options: ChatOptions) -> Asker:
        """Raises ``BadArgument``, or ``CallFailed`` where nobody listens or nothing is served."""
        server = named_server(options.url, options.key, options.key_env, "--url")
        session = open_session(server)
        try:
            what = await served(session, server, options.model)
        except BaseException:
            await session.close()
            raise
        if options.wishes and not what.ours:
            await session.close()
            raise BadArgument(f"--pin, --rate, --delivery: {server.root} is no DiSCo-Serve and knows none of them")
        return Asker(options, session, server, what)

    @property
    def model(self) -> str:
        return self._served.model

    @property
    def ours(self) -> bool:
        return self._served.ours

    async def close(self) -> None:
        await self._session.close()

    async def ask(self, messages: Messages, shown: Shown, write: Write) -> Mapping[str, Any] | None:
        """The report, where the server gives one; of an answer that was resumed, that of its last part."""
        if self.ours:
            return await resuming(lambda body: self._call(body, shown, write), self._body(messages), shown)
        try:
            return await self._call(self._body(messages), shown, write)
        except CallFailed as failure:
            # Some of OpenAI's models refuse the older name.
            if "max_completion_tokens" not in failure.message or self._limit == "max_completion_tokens":
                raise
            self._limit = "max_completion_tokens"
            return await self._call(self._body(messages), shown, write)

    async def _call(self, body: dict[str, Any], shown: Shown, write: Write) -> Mapping[str, Any] | None:
        report: Mapping[str, Any] | None = None
        async with call(self._session, "POST", f"{self._server.api}/chat/completions", body, total=None) as response:
            async for chunk in chunks(response, asyncio.get_running_loop().time):
                report = chunk.report or report
                shown.take(chunk.text, chunk.shown)
                write(chunk.text, chunk.endpoint)
        return report

    def _body(self, messages: Messages) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [dict(message) for message in messages],
            self._limit: self._options.max_tokens,
            "stream": True,
        }
        temperature = self._options.temperature
        if temperature is None and self.ours:
            temperature = TEMPERATURE
        if temperature is not None:
            body["temperature"] = temperature
        if self.ours:
            body["disco"] = {"report": True} | self.wishes
        return body
