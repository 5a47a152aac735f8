from __future__ import annotations

import asyncio
import json
import logging
import random
import struct
from socket import SO_LINGER, SOL_SOCKET

import pytest

from tests.http.fakes import CHAT, FakeService, Running, Script, body, flooding, hanging, saying, serving, until


async def post(server: Running, content: bytes | None = None, length: int | None = None, **fields: object) -> Raw:
    content = json.dumps(body(**fields)).encode() if content is None else content
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length or len(content)}\r\n\r\n"
    writer.write(head.encode() + content)
    await writer.drain()
    return Raw(reader, writer)


class Raw:
    """A connection that ends the way a test wants it to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    async def leave(self, *, reset: bool = False) -> None:
        if reset:
            self._writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.close()


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize(
    ("stream", "script"),
    [
        (True, hanging()),
        (True, hanging(["Hel", "lo"])),
        (True, flooding()),
        (False, hanging()),
        (False, hanging(["Hel", "lo"])),
    ],
)
def test_a_client_that_leaves_ends_its_stream(
    script: Script, stream: bool, reset: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with serving(FakeService(script)) as server:
            client = await post(server, stream=stream)
            await until(lambda: server.service.running == 1)
            await client.leave(reset=reset)
            await until(lambda: server.service.running == 0)

            assert server.surface.desk.admission.running == 0
            text = server.surface.metrics.render().decode()
            assert 'disco_requests_total{code="cancelled"} 1.0' in text
            server.service.script = saying("Hi")
            assert (await server.ask()).status_code == 200
        own = asyncio.current_task()
        assert not [task for task in asyncio.all_tasks() if task is not own]

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert not caplog.records


def test_a_client_that_leaves_amid_its_body_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with serving() as server:
            client = await post(server, b'{"model":', length=500)
            await client.leave()
            await until(lambda: 'code="cancelled"' in server.surface.metrics.render().decode())
            assert not server.service.requests

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert not caplog.records


def test_a_client_that_takes_nothing_holds_up_its_own_stream_and_is_given_up() -> None:
    async def scenario() -> None:
        limits = {"stream_seconds": 0.4, "idle_seconds": 0.1}
        async with serving(FakeService(flooding()), live={"limits": limits}) as server:
            client = await post(server, stream=True)
            await until(lambda: server.service.running == 1)
            await until(lambda: server.service.running == 0)
            await client.leave()

    asyncio.run(scenario())


def test_the_stream_is_written_only_as_fast_as_it_is_taken() -> None:
    async def scenario() -> None:
        made: list[int] = []

        async def counted(request: object):  # type: ignore[no-untyped-def]
            async for delta in flooding()(request):  # type: ignore[arg-type]
                made.append(delta.index)
                yield delta

        async with serving(FakeService(counted)) as server:
            client = await post(server, stream=True)
            await until(lambda: bool(made))
            seen = -1
            # Buffers of the sockets fill up, and then nothing more is asked for.
            while seen != len(made):
                seen = len(made)
                await asyncio.sleep(0.05)
            # Loopback holds a few megabytes; without backpressure the script would be far beyond.
            assert seen * 10_000 < 64_000_000
            await client.leave()
            await until(lambda: server.service.running == 0)

    asyncio.run(scenario())


def test_first_bytes_are_sent_only_with_the_first_token() -> None:
    gate = asyncio.Event()

    async def gated(_: object):  # type: ignore[no-untyped-def]
        await gate.wait()
        async for delta in saying("Hel", "lo")(_):  # type: ignore[arg-type]
            yield delta

    async def scenario() -> None:
        async with serving(FakeService(gated)) as server:
            client = await post(server, stream=True)
            await until(lambda: server.service.running == 1)
            status = asyncio.create_task(client.reader.readline())
            done, _ = await asyncio.wait({status}, timeout=0.05)
            assert not done
            gate.set()
            assert b" 200 " in await status
            await client.leave()

    asyncio.run(scenario())


def test_a_hundred_clients_that_leave_at_random_leak_nothing() -> None:
    chance = random.Random(7)

    async def trickle(_: object):  # type: ignore[no-untyped-def]
        async for delta in saying(*"abcdefghij")(_):  # type: ignore[arg-type]
            await asyncio.sleep(0.002)
            yield delta

    async def one(server: Running) -> None:
        client = await post(server, stream=chance.random() < 0.7)
        await asyncio.sleep(chance.random() * 0.03)
        await client.leave(reset=chance.random() < 0.5)

    async def scenario() -> None:
        async with serving(FakeService(trickle)) as server:
            for _ in range(5):
                await asyncio.gather(*(one(server) for _ in range(20)))
            await until(lambda: server.service.running == 0)
            assert server.surface.desk.admission.running == 0
            assert "disco_streams_running 0.0" in server.surface.metrics.render().decode()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(scenario())
