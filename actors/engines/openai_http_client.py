"""HTTP to one server: its own headers, no redirects, no proxies or cookies from elsewhere, a deadline on every wait."""

from __future__ import annotations

import asyncio
import json
import socket
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any, Final, NoReturn

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from pydantic import SecretStr

from actors.engines.openai_http_errors import Failed, no_json, no_stream, refused
from actors.engines.openai_http_sse import EventParser, EventTooLong, ServerEvent
from serve_app.core.errors import EndpointFault, EndpointTimeout, EndpointUnavailable
from serve_app.server_url import ServerUrl

#: Bytes of a JSON answer or of an error's body that are read; what is longer is not understood anyway.
_MOST_BODY: Final = 4 << 20

#: Seconds that an idle connection is kept: a new one costs up to three round trips before the first token.
_KEEP_ALIVE: Final = 60.0


class HttpClient:
    """``open`` and ``close`` run on the event loop that makes the calls. Every failure is ``Failed``.

    Deadlines are instants of that loop's clock, and cover everything from the connection on. ``address``: where to
    connect to; the host in the URL still names the server, for its Host header and its certificate.
    """

    def __init__(
        self, base_url: str, key: SecretStr | None, connect_seconds: float, address: str | None = None
    ) -> None:
        self._url = ServerUrl.parse(base_url)
        self._address = address
        self._headers = {
            "User-Agent": "disco-serve",
            # A compressed stream would be held back until a block is full.
            "Accept-Encoding": "identity",
        }
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key.get_secret_value()}"
        self._connect_seconds = connect_seconds
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE, resolver=self._resolver()),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(
                total=None, connect=self._connect_seconds, sock_connect=self._connect_seconds, sock_read=None
            ),
            trust_env=False,
        )

    def _resolver(self) -> AbstractResolver | None:
        return None if self._address is None else _Pinned(self._address)

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def get_json(self, path: str, deadline: float) -> Any:
        """``path`` below the base URL."""
        return await self._json("GET", f"{self._url.base}/{path}", None, deadline, "")

    async def post_json(self, path: str, body: Mapping[str, Any], deadline: float, *, at_root: bool = False) -> Any:
        """``at_root``: beside /v1, not below it."""
        base = self._url.root if at_root else self._url.base
        return await self._json("POST", f"{base}/{path}", body, deadline, prompt_field(body))

    @asynccontextmanager
    async def stream(self, path: str, body: Mapping[str, Any], deadline: float) -> AsyncIterator[EventStream]:
        """Entered once the server has answered with status 200. Left early, it closes the connection: that aborts."""
        async with self._answer("POST", f"{self._url.base}/{path}", body, deadline, prompt_field(body)) as response:
            if response.content_type in {"text/html", "application/json"}:
                raise no_stream(response.content_type, await _read(response, deadline), prompt_field(body))
            yield EventStream(response)

    async def _json(self, method: str, url: str, body: Mapping[str, Any] | None, deadline: float, param: str) -> Any:
        async with self._answer(method, url, body, deadline, param) as response:
            data = await _read(response, deadline)
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise no_json(response.content_type) from None

    @asynccontextmanager
    async def _answer(
        self, method: str, url: str, body: Mapping[str, Any] | None, deadline: float, param: str
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            raise Failed(EndpointUnavailable("the engine was closed"))
        accept = {"Accept": "text/event-stream" if body and body.get("stream") else "application/json"}
        try:
            async with asyncio.timeout_at(deadline):
                response = await self._session.request(method, url, json=body, headers=accept, allow_redirects=False)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            _broken(error, connected=False)
        try:
            if response.status != HTTPStatus.OK:
                try:
                    said = await _read(response, deadline)
                except Failed:
                    said = b""
                raise refused(response.status, response.headers, said, param)
            yield response
        finally:
            # A connection whose answer was read to its end has gone back to the pool already.
            response.close()


class _Pinned(AbstractResolver):
    """Every name has this address. A host that is an address itself is not asked for."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        family = socket.AF_INET6 if ":" in self._address else socket.AF_INET
        return [
            ResolveResult(
                hostname=host, host=self._address, port=port, family=family, proto=0, flags=socket.AI_NUMERICHOST
            )
        ]

    async def close(self) -> None:
        """Nothing to close."""


class EventStream:
    """The events of one answer."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._content = response.content
        self._parser = EventParser()
        self._ready: deque[ServerEvent] = deque()
        self._over = False

    @property
    def stray(self) -> str | None:
        """A line that was a JSON object where a field should have been."""
        return self._parser.stray

    async def next(self, deadline: float) -> ServerEvent | None:
        """None at the end. Raises ``Failed``, with ``EndpointTimeout`` at the deadline."""
        while not self._ready and not self._over:
            try:
                async with asyncio.timeout_at(deadline):
                    piece = await self._content.readany()
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                _broken(error, connected=True)
            try:
                self._ready += self._parser.feed(piece)
                if not piece:
                    self._over = True
                    self._ready += self._parser.close()
            except EventTooLong:
                raise Failed(EndpointFault("the server sent an event without an end")) from None
        return self._ready.popleft() if self._ready else None

    async def drain(self, deadline: float) -> None:
        """Read to the end, which gives the connection back; whatever comes instead costs the connection alone."""
        with suppress(Failed):
            while not self._over:
                self._ready.clear()
                await self.next(deadline)


def prompt_field(body: Mapping[str, Any]) -> str:
    """The field of a request that holds the prompt."""
    return "messages" if "messages" in body else "prompt"


async def _read(response: aiohttp.ClientResponse, deadline: float) -> bytes:
    data = bytearray()
    try:
        async with asyncio.timeout_at(deadline):
            while len(data) < _MOST_BODY and (piece := await response.content.readany()):
                data += piece
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        _broken(error, connected=True)
    return bytes(data)


def _broken(error: Exception, *, connected: bool) -> NoReturn:
    """``connected``: the server had begun to answer. Texts of these exceptions may hold addresses: none is repeated."""
    match error:
        case aiohttp.ClientSSLError():
            failed = Failed(
                EndpointUnavailable("no TLS connection to the server; is its certificate valid and its issuer known?")
            )
        case aiohttp.ClientConnectorDNSError():
            failed = Failed(EndpointUnavailable("the host in engine.base_url has no address"), 0.0)
        case aiohttp.ConnectionTimeoutError():
            failed = Failed(EndpointUnavailable("no connection to the server within engine.connect_seconds"), 0.0)
        case TimeoutError() if connected:
            failed = Failed(EndpointTimeout("the server began to answer and fell silent"))
        case TimeoutError():
            failed = Failed(EndpointTimeout("the server took the request and did not answer in time"))
        case aiohttp.ClientResponseError():
            failed = Failed(EndpointFault("the server does not speak HTTP; check engine.base_url"))
        case _ if connected:
            failed = Failed(EndpointUnavailable("the connection broke in the middle of the answer"), 0.0)
        case aiohttp.ServerDisconnectedError():
            failed = Failed(EndpointUnavailable("the server closed the connection without an answer"), 0.0)
        case _:
            failed = Failed(EndpointUnavailable("no connection to the server; is it running?"), 0.0)
    raise failed from None
