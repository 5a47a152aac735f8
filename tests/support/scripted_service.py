"""The stream service and its HTTP surface over scripted endpoints, on virtual time: everything but Ray and sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.sdk.trace.export import SpanExporter
from starlette.applications import Starlette

from serve_app.gauges import watch_buffers, watch_state
from serve_app.ingress import Surface, build_http_app
from serve_app.priors import initial_state
from serve_app.service import StreamService
from serve_app.settings import AppSettings, LiveSettings
from serve_app.streams import EndpointState, Readiness
from serve_app.telemetry import Telemetry
from tests.support.scripted import ScriptedEndpoint

CHAT = "/v1/chat/completions"

#: Requests start in the cloud, and move only when it fails.
LIVE: dict[str, Any] = {
    "policy": {"name": "cloud-only"},
    "migration": {"mode": "off"},
    "prices": {"endpoints": {"cloud": {"input_usd_per_mtok": 1.0, "output_usd_per_mtok": 10.0}}},
}


def _merged(default: Any, given: Any) -> Any:
    return default | given if isinstance(default, dict) and isinstance(given, dict) else given


class ScriptedService(StreamService):
    def readiness(self) -> Readiness:
        return Readiness(True, {name: EndpointState(True, "ready") for name in self._endpoints})


@dataclass
class Answer:
    """What an ASGI application sent. ``at``: when each part of the body came, in the loop's seconds."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    parts: list[bytes] = field(default_factory=list)
    at: list[float] = field(default_factory=list)

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    @property
    def data(self) -> list[str]:
        """The data of each event."""
        events = self.body.decode().removesuffix("\n\n").split("\n\n")
        return [line.removeprefix("data: ") for event in events for line in event.split("\n") if line[:5] == "data:"]

    @property
    def chunks(self) -> list[dict[str, Any]]:
        return [json.loads(data) for data in self.data if data != "[DONE]"]

    @property
    def text(self) -> str:
        choices = (choice for chunk in self.chunks for choice in chunk.get("choices", []))
        return "".join(choice["delta"].get("content") or "" for choice in choices)

    @property
    def error(self) -> dict[str, Any]:
        """Of a refusal, or the last event of a stream."""
        return (self.chunks[-1] if self.data else json.loads(self.body))["error"]  # type: ignore[no-any-return]

    @property
    def report(self) -> dict[str, Any]:
        return self.chunks[-1]["disco"] if self.data else json.loads(self.body)["disco"]  # type: ignore[no-any-return]


class Asking:
    """A client of an ASGI application, without a socket."""

    http: Starlette

    async def ask(
        self,
        *,
        leave_at: float | None = None,
        read: Sequence[float] = (),
        key: str | None = None,
        gone: asyncio.Event | None = None,
        headers: dict[str, str] | None = None,
        **fields: Any,
    ) -> Answer:
        """Post a chat request and take the answer. ``leave_at``, ``gone``: the client goes away then. ``read``: seconds
        that it takes over each part, the last of them for all further ones."""
        content = {"model": "disco", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 100} | fields
        answer, loop = Answer(), asyncio.get_running_loop()
        asked, gone = [json.dumps(content).encode()], gone or asyncio.Event()

        async def receive() -> dict[str, Any]:
            if asked:
                return {"type": "http.request", "body": asked.pop(), "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
                return
            answer.parts.append(message.get("body", b""))
            answer.at.append(loop.time())
            if read:
                await asyncio.sleep(read[min(len(answer.parts), len(read)) - 1])

        timer = None if leave_at is None else loop.call_at(leave_at, gone.set)
        sent = {"host": "localhost", "content-type": "application/json"} | (headers or {})
        if key is not None:
            sent["authorization"] = f"Bearer {key}"
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
            "path": CHAT, "raw_path": CHAT.encode(), "query_string": b"", "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
            "client": ("127.0.0.1", 5), "server": ("127.0.0.1", 8000),
        }  # fmt: skip
        try:
            await self.http(scope, receive, send)
        finally:
            if timer is not None:
                timer.cancel()
        return answer

    async def stream(self, **fields: Any) -> Answer:
        """A streamed answer with its report."""
        return await self.ask(**{"stream": True, "disco": {"report": True}} | fields)


class Stack(Asking):
    """``live`` and ``app`` are merged into small configurations of the named endpoints; ``exporter`` gets the spans."""

    def __init__(
        self,
        *endpoints: ScriptedEndpoint,
        live: dict[str, Any] | None = None,
        exporter: SpanExporter | None = None,
        **app: Any,
    ) -> None:
        placeholder = {"type": "simulated"}
        configured = {e.info.id: {"kind": e.info.kind.value, "engine": placeholder, "slots": 64} for e in endpoints}
        self.app = AppSettings.model_validate({"endpoints": configured} | app)
        self.live = LiveSettings.model_validate(
            {name: _merged(LIVE.get(name), s) for name, s in (LIVE | (live or {})).items()}
        )
        self.endpoints = {endpoint.info.id: endpoint for endpoint in endpoints}
        self.state = initial_state(self.app, self.live, [endpoint.info for endpoint in endpoints])
        self.telemetry = Telemetry(self.app.telemetry, "disco-router", exporter)
        self.service = ScriptedService(self.endpoints, self.app, self.live, self.state, self.telemetry)
        service, loopback = self.service, "127.0.0.1"
        self.surface = Surface(service, self.app, lambda: service.live, lambda: loopback, self.telemetry)
        watch_state(self.surface.metrics, self.state)
        watch_buffers(self.surface.metrics, self.service.buffers)
        self.http = build_http_app(self.surface)

    @property
    def running(self) -> int:
        """Legs and streams under way."""
        return sum(self.state.load.own.values()) + self.surface.desk.admission.running

    @property
    def calls(self) -> int:
        return sum(len(endpoint.calls) for endpoint in self.endpoints.values())


@asynccontextmanager
async def nothing_left(stack: Stack) -> AsyncIterator[None]:
    """Afterwards no leg, stream or task is left, and every call was closed."""
    before = asyncio.all_tasks()
    yield
    for _ in range(20):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() <= before
    assert stack.running == 0
    assert all(call.closed_at is not None for endpoint in stack.endpoints.values() for call in endpoint.calls)
