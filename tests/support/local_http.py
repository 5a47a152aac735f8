"""A shipped configuration over HTTP without Ray: the router's surface over replicas in this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from serve_app.ingress import Surface, build_http_app
from serve_app.live_policy import policy_of, retuned
from serve_app.streams import ClientRequest, EndpointState, Readiness, TextStream
from serve_app.telemetry import Telemetry
from tests.http.fakes import listening
from tests.support.local_service import LocalService, local_service


@dataclass
class LocalRouter:
    """What ``DiscoRouter`` is to its HTTP surface."""

    local: LocalService

    def open(self, request: ClientRequest) -> TextStream:
        return self.local.service.open(request)

    def models(self) -> Sequence[str]:
        return self.local.service.models()

    def readiness(self) -> Readiness:
        return Readiness(True, dict.fromkeys(self.local.endpoints, EndpointState(True, "ready")))

    def snapshot(self) -> dict[str, Any]:
        return {"replica": "1f0c2a", "replicas": 1} | self.local.service.snapshot(self.readiness())

    def retune(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        self.local.service.reconfigure(retuned(self.local.service.live, changes))
        return policy_of(self.local.service.live)


@contextmanager
def http_thread(make: Callable[[], Surface | Awaitable[Surface]]) -> Iterator[str]:
    """The URL of what ``make`` makes, on the loop of a thread of its own."""
    ready, over, loop = threading.Event(), asyncio.Event(), asyncio.new_event_loop()
    found: list[str] = []

    async def serve() -> None:
        made = make()
        surface = made if isinstance(made, Surface) else await made
        try:
            async with listening(build_http_app(surface)) as port:
                found.append(f"http://127.0.0.1:{port}")
                ready.set()
                await over.wait()
        finally:
            ready.set()

    thread = threading.Thread(target=loop.run_until_complete, args=[serve()])
    thread.start()
    try:
        ready.wait()
        yield found[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


@contextmanager
def local_http(args: dict[str, Any], user_config: dict[str, Any]) -> Iterator[str]:
    """The URL of this configuration."""

    async def make() -> Surface:
        local = await local_service(args, user_config)
        router = LocalRouter(local)
        telemetry = Telemetry(local.app.telemetry, "disco-router")
        return Surface(router, local.app, lambda: local.service.live, lambda: "127.0.0.1", telemetry)

    with http_thread(make) as url:
        yield url
