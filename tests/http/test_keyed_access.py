"""The HTTP surface of a router with API keys."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx
import openai
import pytest

from serve_app.core.model import Pin
from serve_app.keys import new_key, sha256_of
from serve_app.streams import EndpointState, Grant, Readiness
from tests.http.fakes import CHAT, COMPLETIONS, FakeService, Running, body, failing, serving

ALICE, BOB, SCRAPER, STRANGER = (new_key() for _ in range(4))
ENDPOINTS = {name: {"kind": "device", "engine": {"type": "simulated"}} for name in ("phone", "tablet")}
KEYS: dict[str, dict[str, Any]] = {
    "alice": {"sha256": sha256_of(ALICE.encode()), "pin": "device_only", "endpoints": ["phone"]},
    "bob": {"sha256": sha256_of(BOB.encode())},
    "scraper": {"sha256": sha256_of(SCRAPER.encode()), "scope": "metrics"},
}
GUARDED = [
    ("POST", CHAT),
    ("POST", COMPLETIONS),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/disco"),
    ("GET", "/v1/models/other"),
    ("GET", CHAT),
    ("POST", "/v1/nothing"),
]


def keyed(
    service: FakeService | None = None, host: str = "0.0.0.0", **access: Any
) -> AbstractAsyncContextManager[Running]:
    return serving(service, host=host, endpoints=ENDPOINTS, access={"keys": KEYS} | access)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def request(server: Running, method: str, path: str, key: str | None = None) -> httpx.Response:
    content = body(path) if path in (CHAT, COMPLETIONS) else None
    return await server.client.request(method, path, json=content, headers=bearer(key) if key else None)


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
@pytest.mark.parametrize("key", [None, STRANGER])
def test_everything_under_v1_needs_a_key(key: str | None, host: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with keyed(host=host) as server:
            for method, path in GUARDED:
                response = await request(server, method, path, key)
                error = response.json()["error"]
                assert response.status_code == 401, path
                assert (error["code"], error["type"]) == ("invalid_api_key", "invalid_request_error")
                assert response.headers["www-authenticate"].startswith("Bearer")
                assert STRANGER not in response.text
            assert not server.service.requests
            assert 'disco_requests_total{code="invalid_api_key"} 2.0' in server.surface.metrics.render().decode()

    with caplog.at_level(logging.DEBUG):
        asyncio.run(scenario())
    assert STRANGER not in caplog.text


def test_a_key_opens_the_api_from_anywhere_and_says_who_may_do_what() -> None:
    async def scenario() -> None:
        async with keyed() as server:
            for key in (ALICE, BOB):
                response = await server.ask(headers=bearer(key) | {"host": "box.lan", "origin": "https://elsewhere"})
                assert response.status_code == 200
                assert (await request(server, "GET", "/v1/models", key)).status_code == 200
                assert (await request(server, "POST", "/v1/nothing", key)).status_code == 404

        alice, bob = server.service.requests
        assert alice.grant == Grant("alice", Pin.DEVICE_ONLY, ("phone",))
        assert bob.grant == Grant("bob")

    asyncio.run(scenario())


def test_without_keys_nobody_has_a_name() -> None:
    async def scenario() -> None:
        async with serving() as server:
            await server.ask(headers=bearer(STRANGER))
        assert server.service.requests[0].grant == Grant()

    asyncio.run(scenario())


def test_metrics_are_for_their_own_key_which_opens_nothing_else() -> None:
    async def scenario() -> None:
        async with keyed() as server:
            assert (await request(server, "GET", "/metrics", SCRAPER)).status_code == 200
            assert (await request(server, "GET", "/metrics")).status_code == 401
            wrong = (("GET", "/metrics", BOB), ("GET", "/v1/models", SCRAPER), ("POST", CHAT, SCRAPER))
            for method, path, key in wrong:
                response = await request(server, method, path, key)
                assert (response.status_code, response.json()["error"]["code"]) == (403, "access_denied")
        assert not server.service.requests

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("host", "key", "told"),
    [("0.0.0.0", None, False), ("0.0.0.0", STRANGER, False), ("0.0.0.0", SCRAPER, True), ("127.0.0.1", None, True)],
)
def test_whether_it_is_ready_everybody_may_know_but_not_why(host: str, key: str | None, told: bool) -> None:
    async def scenario() -> None:
        service = FakeService(state=Readiness(False, {"phone": EndpointState(False, "http://10.1.2.3 is down")}))
        async with keyed(service, host) as server:
            assert (await server.client.get("/health")).status_code == 200
            response = await request(server, "GET", "/ready", key)
            assert response.status_code == 503
            assert response.json()["endpoints"]["phone"]["ready"] is False
            assert ("10.1.2.3" in response.text) is told

    asyncio.run(scenario())


def test_a_key_stays_out_of_logs_and_errors_when_the_router_fails(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with keyed(FakeService(failing(ValueError(ALICE)))) as server:
            response = await server.ask(headers=bearer(ALICE))
            assert response.status_code == 500
            assert ALICE not in response.text

    with caplog.at_level(logging.DEBUG):
        asyncio.run(scenario())
    assert ALICE not in caplog.text


def test_the_official_client_knows_what_is_wrong() -> None:
    async def scenario() -> None:
        async with keyed() as server:
            url = f"http://127.0.0.1:{server.port}/v1"
            async with openai.AsyncOpenAI(base_url=url, api_key=STRANGER, max_retries=0) as stranger:
                with pytest.raises(openai.AuthenticationError) as refused:
                    await stranger.models.list()
            assert refused.value.code == "invalid_api_key"
            async with openai.AsyncOpenAI(base_url=url, api_key=BOB, max_retries=0) as bob:
                assert [model.id async for model in bob.models.list()] == ["disco"]

    asyncio.run(scenario())
