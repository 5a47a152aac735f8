"""A server that does to each generation call what its script says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from aiohttp import web
from aiohttp.test_utils import TestServer

#: Does what it wants with a request. None: it has answered by itself, or not at all.
Act: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class ScriptedServer:
    """The last act is repeated. ``departed``: calls whose client had closed the connection when the act looked."""

    acts: list[Act]
    calls: list[tuple[str, dict[str, Any], Mapping[str, str]]] = field(default_factory=list)
    connections: set[Any] = field(default_factory=set)
    departed: int = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_post("/v1/{route:.*}", self._generate)
        async with TestServer(app, shutdown_timeout=0.1) as server:
            yield str(server.make_url("/v1"))

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        self.calls.append((request.path, await request.json(), request.headers))
        assert request.transport is not None
        self.connections.add(request.transport)
        act = self.acts.pop(0) if len(self.acts) > 1 else self.acts[0]
        try:
            return await act(request)
        except (asyncio.CancelledError, ConnectionResetError):
            self.departed += 1
            raise


def delta(text: str, **choice: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None} | choice]}


STOP = delta("", finish_reason="stop")


def answer(*texts: str, finish: str = "stop") -> Act:
    """A sound stream."""
    return stream(*map(delta, texts), delta("", finish_reason=finish), "[DONE]")


def stream(*events: object, cut: bool = False, hang: bool = False, content_type: str = "text/event-stream") -> Act:
    """Events as JSON, strings as they are. ``cut``: the connection breaks then; ``hang``: nothing more comes."""
    lines = [f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n" for event in events]
    return body("".join(lines).encode(), cut=cut, hang=hang, content_type=content_type)


def body(data: bytes, *, cut: bool = False, hang: bool = False, content_type: str = "text/event-stream") -> Act:
    async def act(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": content_type})
        await response.prepare(request)
        await response.write(data)
        if hang:
            await _until_gone(request)
        if cut:
            assert request.transport is not None
            request.transport.abort()
        return response

    return act


def refusal(status: int, document: object = None, **headers: str) -> Act:
    async def act(_: web.Request) -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.json_response(document, status=status, headers=named)

    return act


def page(status: int = 200) -> Act:
    async def act(_: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>Welcome</html>", content_type="text/html", status=status)

    return act


async def silent(request: web.Request) -> web.StreamResponse:
    """Takes the request and never answers."""
    await _until_gone(request)
    raise ConnectionResetError


async def hung_up(request: web.Request) -> web.StreamResponse:
    """Closes the connection without an answer."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def _until_gone(request: web.Request) -> None:
    while request.transport is not None and not request.transport.is_closing():  # noqa: ASYNC110 - a socket's state
        await asyncio.sleep(0.002)
    raise ConnectionResetError
