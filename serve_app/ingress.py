"""The HTTP surface: routes, and how an open stream becomes a response. Nothing is decided here."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from serve_app.admission import Admission, request_id
from serve_app.auth import check_access
from serve_app.core.errors import DiscoError, InvalidRequest, UnknownModel
from serve_app.errors_http import error_body, error_headers, plain_error, status_of
from serve_app.metrics import Metrics
from serve_app.schema import ParsedRequest, parse_chat, parse_completion
from serve_app.settings import AppSettings, LiveSettings
from serve_app.sse import ChunkWriter, Envelope, error_event, whole_body
from serve_app.streams import StreamService, TextStream

logger = logging.getLogger(__name__)

_SSE_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
_TRACE_HEADERS = ("traceparent", "tracestate")
_MOST_TRACE_CHARACTERS = 512

Parse = Callable[[bytes, str, dict[str, str], LiveSettings], ParsedRequest]


@dataclass(slots=True)
class Surface:
    """What the handlers share. ``http_host``: the address Serve listens on, None while unknown."""

    service: StreamService
    app: AppSettings
    live: Callable[[], LiveSettings]
    http_host: Callable[[], str | None]
    on_shutdown: Callable[[], None]
    metrics: Metrics = field(default_factory=Metrics)
    started: int = field(default_factory=lambda: int(time.time()))
    admission: Admission = field(init=False)

    def __post_init__(self) -> None:
        self.admission = Admission(self.app.router.max_streams)

    def guard(self, request: Request) -> None:
        check_access(self.app.access, self.http_host(), request.headers.get("host"))


def build_http_app(surface: Surface) -> Starlette:
    """An ASGI application over the service; needs neither Ray nor a model."""

    async def chat(request: Request) -> Response:
        return await _generate(surface, request, "chat", parse_chat)

    async def completions(request: Request) -> Response:
        return await _generate(surface, request, "completion", parse_completion)

    async def models(request: Request) -> Response:
        surface.guard(request)
        return JSONResponse({"object": "list", "data": [_model(surface, name) for name in surface.service.models()]})

    async def model(request: Request) -> Response:
        surface.guard(request)
        name = request.path_params["name"]
        if name not in surface.service.models():
            raise UnknownModel(f"no such model; known models: {', '.join(surface.service.models())}", "model")
        return JSONResponse(_model(surface, name))

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(_: Request) -> Response:
        state = surface.service.readiness()
        endpoints = {name: {"ready": s.ready, "reason": s.reason} for name, s in state.endpoints.items()}
        return JSONResponse({"ready": state.ready, "endpoints": endpoints}, 200 if state.ready else 503)

    async def metrics(request: Request) -> Response:
        surface.guard(request)
        return Response(surface.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        surface.on_shutdown()

    return Starlette(
        lifespan=lifespan,
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", model),
            Route("/health", health),
            Route("/ready", ready),
            Route("/metrics", metrics),
        ],
        exception_handlers={DiscoError: _refused, HTTPException: _no_route, Exception: _failed},
    )


async def _generate(surface: Surface, request: Request, kind: Literal["chat", "completion"], parse: Parse) -> Response:
    surface.guard(request)
    identity = request_id(request.headers.get("x-request-id"))
    live = surface.live()
    body = await _read(request, live.limits.body_bytes)
    carrier = {k: v for k in _TRACE_HEADERS if len(v := request.headers.get(k, "")) in range(1, _MOST_TRACE_CHARACTERS)}
    parsed = parse(body, identity, carrier, live)
    prefix = "chatcmpl-" if kind == "chat" else "cmpl-"
    return Generation(surface, parsed, Envelope(kind, prefix + identity, parsed.client.model, int(time.time())))


async def _read(request: Request, limit: int) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limit:
            raise InvalidRequest(f"the body is larger than limits.body_bytes ({limit} bytes); send less")
    return bytes(body)


class Generation(Response):
    """Owns one stream from before its first token until it is closed, and closes it whenever the client leaves."""

    def __init__(self, surface: Surface, parsed: ParsedRequest, envelope: Envelope) -> None:
        self._surface = surface
        self._parsed = parsed
        self._envelope = envelope
        self._began = time.monotonic()
        self._status_sent = False
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's signature
        work = asyncio.create_task(self._answer(send))
        departure = asyncio.create_task(_client_left(receive))
        try:
            await asyncio.wait({work, departure}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            departure.cancel()
            work.cancel()
            await asyncio.wait({work, departure})
        if not work.cancelled():
            work.result()

    async def _answer(self, send: Send) -> None:
        metrics = self._surface.metrics
        try:
            with self._surface.admission.slot(), metrics.running.track_inprogress():
                await self._relay(await self._open(), send)
        except Exception as error:  # noqa: BLE001 - whatever happens, the client gets an error object
            metrics.failed(self._code(error))
            await self._refuse(error, send)

    async def _open(self) -> TextStream:
        try:
            return await self._surface.service.open(self._parsed.client)
        except asyncio.CancelledError:
            self._surface.metrics.failed("cancelled")
            raise

    async def _relay(self, stream: TextStream, send: Send) -> None:
        """Pass the stream on. What goes wrong is reported to the client here; the stream is closed in any case."""
        code = "cancelled"
        try:
            if self._parsed.stream:
                await self._send_events(stream, send)
            else:
                await self._send_whole(stream, send)
            code = "ok"
        except Exception as error:  # noqa: BLE001 - whatever happens, the client gets an error object
            code = self._code(error)
            await self._refuse(error, send)
        finally:
            await stream.aclose()
            seconds = time.monotonic() - self._began
            self._surface.metrics.observe(self._parsed.client.model, stream.outcome.report, seconds, code)

    def _code(self, error: Exception) -> str:
        if isinstance(error, DiscoError):
            return error.code
        # The exception's own text may quote the request; where it happened does not.
        where = "".join(traceback.format_tb(error.__traceback__))
        logger.error("request %s: %s\n%s", self._parsed.client.request_id, type(error).__name__, where)
        return "internal_error"

    async def _send_events(self, stream: TextStream, send: Send) -> None:
        writer = ChunkWriter(self._envelope, include_usage=self._parsed.include_usage, report=self._parsed.report)
        await self._start(send, 200, _SSE_HEADERS | {"x-disco-policy": stream.policy})
        async for delta in stream:
            await send({"type": "http.response.body", "body": writer.delta(delta), "more_body": True})
        await send({"type": "http.response.body", "body": writer.end(stream.outcome), "more_body": False})

    async def _send_whole(self, stream: TextStream, send: Send) -> None:
        text = "".join([delta.text async for delta in stream])
        body = whole_body(self._envelope, text, stream.outcome, report=self._parsed.report)
        await self._send_json(send, 200, body, {"x-disco-policy": stream.policy})

    async def _refuse(self, error: BaseException, send: Send) -> None:
        if self._status_sent:
            await send({"type": "http.response.body", "body": error_event(error_body(error)), "more_body": False})
        else:
            await self._send_json(send, status_of(error), error_body(error), error_headers(error))

    async def _send_json(self, send: Send, status: int, body: dict[str, Any], headers: dict[str, str]) -> None:
        content = json.dumps(body, ensure_ascii=False).encode()
        await self._start(
            send, status, {"content-type": "application/json", "content-length": str(len(content))} | headers
        )
        await send({"type": "http.response.body", "body": content, "more_body": False})

    async def _start(self, send: Send, status: int, headers: dict[str, str]) -> None:
        headers = headers | {"x-request-id": self._parsed.client.request_id}
        if self._parsed.ignored:
            headers["x-disco-ignored"] = ",".join(self._parsed.ignored)
        self._status_sent = True
        await send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()],
            }
        )


async def _client_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _refused(_: Request, error: Exception) -> Response:
    return JSONResponse(error_body(error), status_of(error), error_headers(error))


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        message, code = f"{request.method} is not allowed here", "method_not_allowed"
    else:
        message, code = "there is nothing at this path; the API is under /v1", "not_found"
    return JSONResponse(plain_error(message, "invalid_request_error", code), error.status_code, headers=error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    logger.error("%s failed: %s", request.url.path, type(error).__name__)
    return JSONResponse(error_body(error), 500)


def _model(surface: Surface, name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": surface.started, "owned_by": "disco-serve"}
