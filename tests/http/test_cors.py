"""Which pages a browser lets use the router."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from serve_app.keys import new_key, sha256_of
from tests.http.fakes import CHAT, Running, serving

PAGE, FOREIGN = "https://chat.example", "https://evil.example"
KEY = new_key()
KEYED: dict[str, Any] = {"keys": {"alice": {"sha256": sha256_of(KEY.encode())}}}


async def preflight(server: Running, origin: str) -> httpx.Response:
    asks = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,x-stainless-os"}
    return await server.client.options(CHAT, headers={"origin": origin} | asks)


@pytest.mark.parametrize("access", [{}, KEYED])
def test_browsers_are_told_nothing_by_default(access: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with serving(access=access) as server:
            answers = [
                await preflight(server, PAGE),
                await server.ask(headers={"origin": "http://localhost:3000", "authorization": f"Bearer {KEY}"}),
            ]
        assert answers[0].status_code >= 400
        assert answers[1].status_code == 200
        assert not [name for answer in answers for name in answer.headers if name.startswith("access-control-")]

    asyncio.run(scenario())


@pytest.mark.parametrize("access", [{}, KEYED])
@pytest.mark.parametrize("stream", [True, False])
def test_an_allowed_page_may_ask_and_read_the_answer(access: dict[str, Any], stream: bool) -> None:
    async def scenario() -> None:
        async with serving(access=access | {"allowed_origins": [PAGE]}) as server:
            asked = await preflight(server, PAGE)
            assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (200, PAGE)
            assert "authorization" in asked.headers["access-control-allow-headers"]

            headers = {"origin": PAGE, "authorization": f"Bearer {KEY}"}
            for answer in (
                await server.ask(headers=headers, stream=stream),
                await server.ask(headers=headers, stream=stream, temperature=9),
            ):
                assert answer.headers["access-control-allow-origin"] == PAGE
                assert "x-disco-policy" in answer.headers["access-control-expose-headers"]
                assert "access-control-allow-credentials" not in answer.headers
            assert len(server.service.requests) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("access", [{}, KEYED])
def test_a_page_from_anywhere_else_may_not(access: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with serving(access=access | {"allowed_origins": [PAGE]}) as server:
            assert (await preflight(server, FOREIGN)).status_code == 400
            answer = await server.ask(headers={"origin": FOREIGN})
            assert answer.status_code == (401 if access else 403)
            assert "access-control-allow-origin" not in answer.headers
            assert not server.service.requests

    asyncio.run(scenario())
