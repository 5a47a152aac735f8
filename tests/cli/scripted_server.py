"""An HTTP server on loopback, in a thread of its own, that answers as it is told."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

#: Of this service, and of any other server.
MODELS = {"object": "list", "data": [{"id": name, "owned_by": "disco-serve"} for name in ("disco", "other")]}
FOREIGN = {"object": "list", "data": [{"id": "gpt"}]}

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Scripted:
    """What the server was asked; ``left`` is set when a client goes before its answer is complete."""

    url: str = ""
    keys: list[str | None] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    left: threading.Event = field(default_factory=threading.Event)


@contextmanager
def scripted_server(answer: Answer, models: Any = MODELS, host: str = "127.0.0.1") -> Iterator[Scripted]:
    state = Scripted()
    ready, over = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def chat(request: web.Request) -> web.StreamResponse:
        state.keys.append(request.headers.get("authorization"))
        state.bodies.append(await request.json())
        try:
            return await answer(request)
        except asyncio.CancelledError:
            state.left.set()
            raise

    async def list_models(request: web.Request) -> web.StreamResponse:
        state.keys.append(request.headers.get("authorization"))
        return web.json_response(models)

    async def main() -> None:
        app = web.Application()
        app.add_routes([web.get("/v1/models", list_models), web.post("/v1/chat/completions", chat)])
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, host, 0).start()
        state.url = f"http://{host}:{runner.addresses[0][1]}"
        ready.set()
        await over.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield state
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(10)
        loop.close()


def event(document: Any) -> bytes:
    return b"data: " + (document if isinstance(document, bytes) else json.dumps(document).encode()) + b"\n\n"


def chunk(text: str, endpoint: str | None = None) -> bytes:
    extra = {} if endpoint is None else {"disco": {"endpoint": endpoint}}
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], **extra})


def end(report: dict[str, Any] | None) -> bytes:
    extra = {} if report is None else {"disco": report}
    return event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], **extra}) + event(b"[DONE]")


def stream(*pieces: bytes, hold: bool = False, then: Callable[[], None] = lambda: None) -> Answer:
    """Sends each piece by itself. ``hold``: and leaves the stream open after them."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        then()
        if hold:
            await asyncio.Event().wait()
        return response

    return answer


def refuse(status: int, body: Any) -> Answer:
    async def answer(_: web.Request) -> web.StreamResponse:
        if isinstance(body, str):
            return web.Response(status=status, text=body)
        return web.json_response(body, status=status)

    return answer
