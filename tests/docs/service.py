"""The HTTP surface over a scripted service, in a thread of its own, for commands that block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.http.fakes import FakeService, saying, serving


@contextmanager
def answering() -> Iterator[str]:
    """The URL of a service that answers everything with two words."""
    started, urls = threading.Event(), list[str]()
    loop = asyncio.new_event_loop()
    over = asyncio.Event()

    async def main() -> None:
        async with serving(FakeService(saying("Hello", " there"))) as running:
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
