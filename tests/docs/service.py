"""The HTTP surface over a scripted service, in a thread of its own, for commands that block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from serve_app.devices import DeviceRegistration, DeviceReport
from tests.cli.test_top import LIVE
from tests.http.fakes import FakeService, make_surface, saying, serving


class Looked(FakeService):
    def snapshot(self) -> dict[str, Any]:
        return LIVE


class Willing:
    """Takes every device that is described as one must be."""

    async def register(self, registration: DeviceRegistration) -> str:
        return f"token of {registration.name}"

    def remove(self, name: str) -> None:
        pass

    def hear(self, name: str, report: DeviceReport) -> None:
        pass

    def recognises(self, name: str, authorization: Sequence[str]) -> bool:
        return True

    def listing(self) -> list[dict[str, Any]]:
        return []

    async def close(self) -> None:
        pass


@contextmanager
def answering() -> Iterator[str]:
    """The URL of a service that answers everything with two words."""
    started, urls = threading.Event(), list[str]()
    loop = asyncio.new_event_loop()
    over = asyncio.Event()

    async def main() -> None:
        surface = make_surface(Looked(saying("Hello", " there")))
        surface.devices = Willing()
        async with serving(surface=surface) as running:
            urls.append(f"http://127.0.0.1:{running.port}")
            started.set()
            await over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()), daemon=True)
    thread.start()
    assert started.wait(20)
    try:
        yield urls[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(20)
        loop.close()
