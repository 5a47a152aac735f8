"""Bodies that are too large, too slow, too deep or too many: each is refused in time, and nobody else notices."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from serve_app.body import MOST_MESSAGES
from tests.http.fakes import CHAT, Running, body, serving

HURRIED = {"limits": {"body_seconds": 0.3}}
SMALL = {"limits": {"body_bytes": 2000}}


@asynccontextmanager
async def half_a_request(server: Running, framing: str) -> AsyncIterator[tuple[Any, Any]]:
    """A connection over which the head of a request went, and no body yet."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n{framing}\r\n\r\n".encode())
    try:
        yield reader, writer
    finally:
        writer.close()


async def answer(reader: Any) -> tuple[int, dict[str, Any]]:
    """The status and the error's object; the server must close the connection after it."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    assert "\r\nconnection: close\r\n" in head
    length = int(head.partition("\r\ncontent-length: ")[2].partition("\r\n")[0])
    error = json.loads(await reader.readexactly(length))["error"]
    # A reset, where the server had not read all that came.
    with suppress(ConnectionResetError):
        assert await reader.read() == b""
    return int(head.split()[1]), error


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    async def scenario() -> None:
        async with serving(live=HURRIED) as server, half_a_request(server, "Content-Length: 500") as (reader, _):
            assert (await server.ask()).status_code == 200, "meanwhile everybody else is served"
            status, error = await answer(reader)
            assert (status, error["code"], error["retryable"]) == (408, "body_timeout", True)
            assert "limits.body_seconds" in error["message"]
            assert 'disco_requests_total{code="body_timeout"} 1.0' in server.surface.metrics.render().decode()

    asyncio.run(scenario())


def test_a_body_that_trickles_has_no_more_time_than_another() -> None:
    async def scenario() -> None:
        async with serving(live=HURRIED) as server, half_a_request(server, "Content-Length: 9000") as (reader, writer):

            async def trickle() -> None:
                while not writer.is_closing():
                    writer.write(b" ")
                    await asyncio.sleep(0.02)

            trickling = asyncio.create_task(trickle())
            status, error = await answer(reader)
            trickling.cancel()
            assert (status, error["code"]) == (408, "body_timeout")
            assert server.service.requests == []

    asyncio.run(scenario())


@pytest.mark.parametrize("length", ["2001", "9" * 18, "9" * 19])
def test_a_body_that_is_announced_too_large_is_refused_before_it_comes(length: str) -> None:
    async def scenario() -> None:
        async with serving(live=SMALL) as server, half_a_request(server, f"Content-Length: {length}") as (reader, _):
            status, error = await answer(reader)
            assert (status, error["code"]) == (413, "body_too_large")

    asyncio.run(scenario())


def test_a_body_without_an_end_is_refused_where_the_limit_is() -> None:
    async def scenario() -> None:
        async with serving(live=SMALL) as server:
            assert (await server.ask(user="x" * 1800)).status_code == 200
            assert (await server.ask(user="x" * 2000)).status_code == 413
            async with half_a_request(server, "Transfer-Encoding: chunked") as (reader, writer):
                writer.write(b"800\r\n" + b"x" * 2048 + b"\r\n")
                status, error = await answer(reader)
                assert (status, error["code"]) == (413, "body_too_large")

    asyncio.run(scenario())


DEEP = 100_000
NESTED = [
    b"[" * DEEP,
    b'{"a":' * DEEP,
    b"[" * DEEP + b"]" * DEEP,
    *(
        json.dumps(body(**{name: "HERE"})).encode().replace(b'"HERE"', b"[" * DEEP + b"]" * DEEP)
        for name in ("unknown", "stop", "messages", "logit_bias")
    ),
]


@pytest.mark.parametrize("content", NESTED, ids=range(len(NESTED)))
def test_deep_nesting_is_a_bad_request(content: bytes) -> None:
    async def scenario() -> None:
        async with serving() as server:
            response = await server.client.post(CHAT, content=content)
            assert response.status_code == 400
            assert response.json()["error"]["code"] == "invalid_request"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": "x"}] * MOST_MESSAGES},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 20_000}]},
        {"messages": [{"role": "user", "content": "x" * 900_000}]},
        {f"field{number}": number for number in range(40_000)},
    ],
    ids=["messages", "parts", "text", "fields"],
)
def test_as_much_as_a_body_may_hold_is_served(fields: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with serving() as server:
            response = await server.ask(**fields)
            assert response.status_code == 200
            assert len(response.headers.get("x-disco-ignored", "")) < 2000

    asyncio.run(scenario())


def test_more_messages_than_anybody_needs_are_a_bad_request() -> None:
    async def scenario() -> None:
        async with serving() as server:
            response = await server.ask(messages=[{"role": "user", "content": "x"}] * (MOST_MESSAGES + 1))
            assert response.status_code == 400
            assert response.json()["error"]["message"] == f"messages: at most {MOST_MESSAGES} are taken; give fewer"

    asyncio.run(scenario())


def test_a_number_of_a_hundred_thousand_digits_is_a_bad_request() -> None:
    async def scenario() -> None:
        async with serving() as server:
            for name in ("seed", "max_tokens", "temperature", "unknown"):
                content = json.dumps(body(**{name: "HERE"})).replace('"HERE"', "7" * 100_000)
                response = await server.client.post(CHAT, content=content.encode())
                assert response.status_code == 400, name

    asyncio.run(scenario())
