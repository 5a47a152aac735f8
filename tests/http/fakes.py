"""A scripted stream service, and the HTTP surface over it behind a real uvicorn on loopback."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx
import uvicorn
from opentelemetry.sdk.trace.export import SpanExporter
from starlette.applications import Starlette

from serve_app.core.errors import UnknownModel
from serve_app.ingress import Surface, build_http_app
from serve_app.live_policy import policy_of, retuned
from serve_app.settings import AppSettings, LiveSettings
from serve_app.streams import ClientRequest, Delta, EndpointState, Outcome, Readiness, Usage
from serve_app.telemetry import Telemetry

CANARY = "canary-7f3a"
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"

Script = Callable[[ClientRequest], AsyncGenerator[Delta, None]]

REPORT: dict[str, Any] = {
    "policy": "disco-d",
    "reason": "hedge",
    "eligible": ["cloud", "phone"],
    "hedge": "fired",
    "winner": "phone",
    "legs": [
        {"attempt": "r-1-cloud", "endpoint": "cloud", "kind": "cloud", "imitates": None, "reason": "dispatch",
         "start_s": 0.0, "ttft_s": None, "queued_s": None, "tokens": 0, "prefill_tokens": 5, "cost_usd": 0.25,
         "outcome": "lost", "error": None},
        {"attempt": "r-2-phone", "endpoint": "phone", "kind": "device", "imitates": "s23", "reason": "hedge",
         "start_s": 0.3, "ttft_s": 0.2, "queued_s": 0.1, "tokens": 2, "prefill_tokens": 5, "cost_usd": 0.5,
         "outcome": "completed", "error": None},
    ],
    "migrations": [
        {"from": "phone", "to": "cloud", "at_token": 1, "mode": "overlap", "reason": "planned",
         "outcome": "completed", "gap_s": 0.0},
    ],
    "verdicts": [],
    "ttft_s": 0.5,
    "tbt_p99_s": 0.2,
    "delay_num": 3,
    "qoe": 0.97,
    "cost_usd": 0.75,
    "cost_notional": True,
    "prompt_tokens_estimated": 6,
    "prompt_tokens": 5,
    "completion_tokens": 2,
}  # fmt: skip


def saying(*texts: str) -> Script:
    async def script(_: ClientRequest) -> AsyncGenerator[Delta, None]:
        for index, text in enumerate(texts):
            yield Delta(index, 1, text, "phone")

    return script


def failing(error: BaseException, after: Sequence[str] = ()) -> Script:
    async def script(_: ClientRequest) -> AsyncGenerator[Delta, None]:
        for index, text in enumerate(after):
            yield Delta(index, 1, text, "phone")
        raise error

    return script


def hanging(after: Sequence[str] = ()) -> Script:
    async def script(_: ClientRequest) -> AsyncGenerator[Delta, None]:
        for index, text in enumerate(after):
            yield Delta(index, 1, text, "phone")
        await asyncio.Event().wait()

    return script


def flooding() -> Script:
    """Writes for ever, as fast as it is read."""

    async def script(_: ClientRequest) -> AsyncGenerator[Delta, None]:
        index = 0
        while True:
            yield Delta(index, 1, "x" * 10_000, "phone")
            index += 1
            await asyncio.sleep(0)

    return script


class FakeStream:
    policy = "disco-d"

    def __init__(self, service: FakeService, request: ClientRequest) -> None:
        self._service = service
        self._deltas = service.script(request)
        self._held: list[Delta] = []
        self._first_token: float | None = None
        service.running += 1

    async def started(self) -> None:
        async for delta in self._deltas:
            self._held.append(delta)
            self._first_token = asyncio.get_running_loop().time()
            break

    async def __aiter__(self) -> AsyncIterator[Delta]:
        while self._held:
            yield self._held.pop()
        async for delta in self._deltas:
            yield delta

    @property
    def outcome(self) -> Outcome:
        return Outcome(self._service.finish, Usage(5, 2, True), REPORT, self._first_token)

    async def aclose(self) -> None:
        await self._deltas.aclose()
        self._service.running -= 1


@dataclass
class FakeService:
    """``running``: streams that were opened and not closed again."""

    script: Script = field(default_factory=lambda: saying("Hello", " world"))
    finish: Literal["stop", "length"] = "stop"
    state: Readiness = field(default_factory=lambda: Readiness(True, {"phone": EndpointState(True, "ready")}))
    requests: list[ClientRequest] = field(default_factory=list)
    running: int = 0
    snapshots: int = 0
    live: LiveSettings = field(default_factory=LiveSettings)

    def open(self, request: ClientRequest) -> FakeStream:
        self.requests.append(request)
        if request.model != "disco":
            raise UnknownModel("no model of that name is served here; known models: disco", "model")
        return FakeStream(self, request)

    def models(self) -> Sequence[str]:
        return ("disco",)

    def readiness(self) -> Readiness:
        return self.state

    def snapshot(self) -> dict[str, Any]:
        self.snapshots += 1
        return {"replica": "r", "streams_running": self.running}

    def retune(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        self.live = retuned(self.live, changes)
        return policy_of(self.live)


def make_surface(
    service: FakeService | None = None,
    *,
    host: str | None = "127.0.0.1",
    live: dict[str, Any] | None = None,
    exporter: SpanExporter | None = None,
    **app: Any,
) -> Surface:
    settings = AppSettings.model_validate(
        {"endpoints": {"phone": {"kind": "device", "engine": {"type": "simulated"}}}} | app
    )
    service = service or FakeService()
    if live is not None:
        service.live = LiveSettings.model_validate(live)
    telemetry = Telemetry(settings.telemetry, "disco-router", exporter)
    return Surface(service, settings, lambda: service.live, lambda: host, telemetry)


@dataclass
class Running:
    surface: Surface
    service: FakeService
    port: int
    client: httpx.AsyncClient

    async def ask(self, path: str = CHAT, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
        return await self.client.post(path, json=body(path, **fields), headers=headers)

    async def events(self, path: str = CHAT, **fields: Any) -> list[dict[str, Any]]:
        """The parsed chunks of a stream that must end with [DONE]."""
        response = await self.ask(path, stream=True, **fields)
        assert response.status_code == 200, response.text
        *chunks, done = data_of(response.text)
        assert done == "[DONE]"
        return [json.loads(chunk) for chunk in chunks]


def body(path: str = CHAT, **fields: Any) -> dict[str, Any]:
    ask = {"messages": [{"role": "user", "content": "Hi"}]} if path == CHAT else {"prompt": "Hi"}
    return {"model": "disco"} | ask | fields


def data_of(text: str) -> list[str]:
    """The data of each event; every event must have an id and one line of data."""
    assert text.endswith("\n\n")
    events = [event.split("\n") for event in text.removesuffix("\n\n").split("\n\n")]
    assert all(len(event) == 2 and event[0].startswith("id: ") for event in events), events
    return [event[1].removeprefix("data: ") for event in events]


@asynccontextmanager
async def serving(
    service: FakeService | None = None, *, surface: Surface | None = None, **options: Any
) -> AsyncIterator[Running]:
    surface = surface or make_surface(service, **options)
    assert isinstance(surface.service, FakeService)
    async with listening(build_http_app(surface)) as port:
        url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=url, timeout=20, trust_env=False) as client:
            yield Running(surface, surface.service, port, client)


@asynccontextmanager
async def listening(app: Starlette) -> AsyncIterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(
            uvicorn.Config(app, log_config=None, ws="none", lifespan="on", timeout_graceful_shutdown=5)
        )
        task = asyncio.create_task(server.serve(sockets=[listener]))
        await until(lambda: server.started or task.done())
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await task


async def until(condition: Callable[[], bool], patience: float = 20.0) -> None:
    async with asyncio.timeout(patience):
        while not condition():  # noqa: ASYNC110 - the conditions are other parties' plain attributes
            await asyncio.sleep(0.002)
