"""The HTTP surface: routes, and who and what is let in. Nothing is decided here."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from serve_app.access_settings import Scope
from serve_app.admission import Admission
from serve_app.auth import check_access, is_loopback
from serve_app.body import read_object
from serve_app.callers import EVERYBODY, Caller, Callers, callers_of
from serve_app.client_headers import request_id, trace_carrier
from serve_app.core.errors import AccessDenied, UnknownModel
from serve_app.device_routes import Devices, device_routes
from serve_app.errors_http import plain_error, status_of
from serve_app.gauges import watch_admission
from serve_app.intake import read_whole
from serve_app.live_policy import EXAMPLE, policy_of
from serve_app.metrics import Metrics
from serve_app.openapi import document
from serve_app.page import page_routes
from serve_app.responses import Arrival, Desk, Generation, Json, outcome_code, refusal
from serve_app.router_spans import ServerSpan
from serve_app.routes import route
from serve_app.schema import ParsedRequest, parse_chat, parse_completion
from serve_app.settings import AppSettings, LiveSettings
from serve_app.snapshot import Glance
from serve_app.sse import Envelope
from serve_app.streams import StreamService
from serve_app.telemetry import Telemetry

logger = logging.getLogger(__name__)

#: Those that a page elsewhere may read.
_EXPOSED = ("x-request-id", "x-disco-policy", "x-disco-ignored", "retry-after")

_UNSTORED = {"cache-control": "no-store"}

Parse = Callable[[bytes, str, dict[str, str], LiveSettings], ParsedRequest]


@dataclass(slots=True)
class Surface:
    """What the handlers share. ``http_host``: the address Serve listens on, None while unknown.

    ``devices``: those that join and report over HTTP; None where nobody would hear them.
    """

    service: StreamService
    app: AppSettings
    live: Callable[[], LiveSettings]
    http_host: Callable[[], str | None]
    telemetry: Telemetry
    metrics: Metrics = field(default_factory=Metrics)
    devices: Devices | None = None
    started: int = field(default_factory=lambda: int(time.time()))
    desk: Desk = field(init=False)
    callers: Callers | None = field(init=False)

    def __post_init__(self) -> None:
        self.desk = Desk(self.service, Admission(self.app.router.max_streams), self.metrics)
        watch_admission(self.metrics, self.desk.admission)
        self.callers = callers_of(self.app)

    def guard(self, request: Request, scope: Scope = "api") -> Caller:
        """Who asks. Raises AccessDenied where nobody may, or not this one."""
        headers = request.headers
        if self.callers is not None:
            return self.callers.identify(headers.getlist("authorization"), scope)
        check_access(self.app.access, self.http_host(), headers.get("host"), headers.get("origin"))
        if scope == "operator" and self.app.access.open:
            raise AccessDenied("access.open makes everybody equal; use keys, one of them with `scope: operator`")
        return EVERYBODY

    def admit(self, request: Request) -> None:
        """Whether the page is for this request: where there are keys, for all, since it asks for one itself."""
        if self.callers is None:
            self.guard(request)

    def trusts(self, request: Request) -> bool:
        """Whether it may see why an endpoint is not ready; where anybody may ask, reasons are for those with a key."""
        if self.callers is None or is_loopback(self.http_host()):
            return True
        return self.callers.knows(request.headers.getlist("authorization"))


def build_http_app(surface: Surface) -> Starlette:
    """An ASGI application over the service; needs neither Ray nor a model."""
    handlers = _Handlers(surface, Glance(surface.service.snapshot, time.monotonic))
    origins = surface.app.access.allowed_origins
    app = Starlette(
        lifespan=_lifespan(surface),
        middleware=[_cors(origins)] if origins else [],
        routes=[
            route("/v1/chat/completions", handlers.chat, ["POST"]),
            route("/v1/completions", handlers.completions, ["POST"]),
            route("/v1/models", handlers.models),
            route("/v1/models/{name:path}", handlers.model),
            route("/openapi.json", handlers.describe),
            route("/health", handlers.health),
            route("/ready", handlers.ready),
            route("/metrics", handlers.metrics),
            route("/disco/live", handlers.live),
            route("/disco/policy", handlers.policy, ["GET", "PATCH"]),
            *_device_routes(surface),
            *(page_routes(surface.admit) if surface.app.access.page else ()),
        ],
        exception_handlers={HTTPException: handlers.no_route},
    )
    # A redirect would be sent before the Host header it is made of was checked.
    app.router.redirect_slashes = False
    return app


@dataclass(frozen=True, slots=True)
class _Handlers:
    """One method per route."""

    surface: Surface
    glance: Glance

    async def chat(self, request: Request) -> Response:
        return await _generate(self.surface, request, "chat", parse_chat)

    async def completions(self, request: Request) -> Response:
        return await _generate(self.surface, request, "completion", parse_completion)

    async def models(self, request: Request) -> Response:
        self.surface.guard(request)
        return Json({"object": "list", "data": [_model(self.surface, name) for name in self.surface.service.models()]})

    async def model(self, request: Request) -> Response:
        self.surface.guard(request)
        name, known = request.path_params["name"], self.surface.service.models()
        if name not in known:
            raise UnknownModel(f"no such model; known models: {', '.join(known)}", "model")
        return Json(_model(self.surface, name))

    async def describe(self, request: Request) -> Response:
        self.surface.guard(request)
        models, limits = self.surface.service.models(), self.surface.live().limits
        keyed, devices = self.surface.callers is not None, self.surface.devices is not None
        return Json(document(models, limits, keyed=keyed, devices=devices))

    async def health(self, _: Request) -> Response:
        return Json({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        state, trusted = self.surface.service.readiness(), self.surface.trusts(request)
        endpoints = {
            name: {"ready": s.ready, "reason": s.reason} if trusted else {"ready": s.ready}
            for name, s in state.endpoints.items()
        }
        ready = state.ready and not self.surface.desk.admission.draining
        return Json({"ready": ready, "endpoints": endpoints}, 200 if ready else 503)

    async def metrics(self, request: Request) -> Response:
        self.surface.guard(request, "metrics")
        return Response(self.surface.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def live(self, request: Request) -> Response:
        self.surface.guard(request, "operator")
        return Json(self.glance(), headers=_UNSTORED)

    async def policy(self, request: Request) -> Response:
        self.surface.guard(request, "operator")
        if request.method == "PATCH":
            changes = read_object(await read_whole(request, self.surface.live().limits), EXAMPLE)
            return Json(self.surface.service.retune(changes))
        return Json(policy_of(self.surface.live()), headers=_UNSTORED)

    async def no_route(self, request: Request, error: Exception) -> Response:
        """Tells a path that is none only to those who may use the API."""
        try:
            path = request.scope["path"]
            if path.startswith("/v1"):
                self.surface.guard(request)
            elif path.startswith("/disco"):
                self.surface.guard(request, "operator")
        except AccessDenied as denied:
            return refusal(denied)
        return _no_route(error)


def _lifespan(surface: Surface) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        if surface.devices is not None:
            await surface.devices.close()
        if surface.callers is not None:
            surface.callers.close()
        # It blocks until the collector has what is left, and answers may still be on their way out.
        await asyncio.to_thread(surface.telemetry.shutdown)

    return lifespan


def _device_routes(surface: Surface) -> list[Route]:
    async def body(request: Request) -> bytes:
        return await read_whole(request, surface.live().limits)

    return [] if surface.devices is None else device_routes(surface.devices, surface.guard, body)


def _cors(origins: Sequence[str]) -> Middleware:
    """Lets browsers hand answers to pages of these origins. They need a key all the same: none goes by itself."""
    return Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=_EXPOSED,
    )


async def _generate(surface: Surface, request: Request, kind: Literal["chat", "completion"], parse: Parse) -> Response:
    now = asyncio.get_running_loop().time
    identity, path = request_id(request.headers.get("x-request-id")), request.scope["path"]
    arrival = now()
    span = ServerSpan(
        surface.telemetry, trace_carrier(request.headers), path, identity, arrival, request.scope["scheme"]
    )
    live = surface.live()
    try:
        caller = surface.guard(request)
        caller.enter()
        body = await read_whole(request, live.limits)
        parsed = parse(body, identity, span.carrier, live).granted(caller.grant)
    except (ClientDisconnect, asyncio.CancelledError) as left:
        surface.metrics.failed("cancelled")
        span.end(None, "cancelled", now())
        if isinstance(left, asyncio.CancelledError):
            raise
        return Response(status_code=400)
    except Exception as error:  # noqa: BLE001 - an error's own text may quote the body, so nobody else may log it
        code = outcome_code(error, identity)
        surface.metrics.failed(code)
        span.end(status_of(error), code, now())
        return refusal(error)
    prefix = "chatcmpl-" if kind == "chat" else "cmpl-"
    envelope = Envelope(kind, prefix + uuid.uuid4().hex, parsed.client.model, int(time.time()))
    patience = live.limits.stream_seconds + live.limits.idle_seconds
    span.answering(envelope.id, stream=parsed.stream)
    return Generation(surface.desk, caller, parsed, envelope, patience, Arrival(arrival, span))


def _no_route(error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        message, code = "this method is not allowed here", "method_not_allowed"
    else:
        message, code = "there is nothing at this path; the API is under /v1", "not_found"
    return Json(plain_error(message, "invalid_request_error", code), error.status_code, headers=error.headers)


def _model(surface: Surface, name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": surface.started, "owned_by": "disco-serve"}
