"""The HTTP surface of a router with API keys."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AbstractAsyncContextManager, closing
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from serve_app.core.errors import EndpointUnavailable
from serve_app.core.model import Pin
from serve_app.keys import new_key, sha256_of
from serve_app.spending import SpendingFile
from serve_app.streams import EndpointState, Grant, Readiness
from tests.http.fakes import (
    CHAT,
    COMPLETIONS,
    REPORT,
    FakeService,
    Running,
    Script,
    body,
    failing,
    hanging,
    saying,
    serving,
    until,
)

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
@pytest.mark.parametrize("key", [None, STRANGER], ids=["none", "stranger"])
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


@pytest.mark.parametrize("host", ["[", "x/y", "x?", "a b", ""])
def test_no_host_header_confuses_the_door(host: str) -> None:
    async def scenario() -> None:
        async with keyed() as server:
            assert (await server.client.get("/v1/nothing", headers={"host": host})).status_code == 401
            assert (await server.client.get("/v1/nothing", headers=bearer(BOB) | {"host": host})).status_code == 404

    asyncio.run(scenario())


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
    ids=["nobody", "a stranger", "the scraper", "this machine"],
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


# --- limits ---


def limited(tmp_path: Path, service: FakeService | None = None, **limits: Any) -> AbstractAsyncContextManager[Running]:
    keys = {"bob": KEYS["bob"] | limits, "alice": {"sha256": KEYS["alice"]["sha256"]}}
    return keyed(service, keys=keys, spending_folder=str(tmp_path))


def refused(response: httpx.Response) -> tuple[int, str, str]:
    error = response.json()["error"]
    return response.status_code, error["code"], error["type"]


def spent(folder: Path, key: str) -> float:
    with closing(SpendingFile(folder)) as file:
        return file.spent(key).total


def test_requests_beyond_the_minutes_are_told_when_to_come_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with limited(tmp_path, requests_per_minute=2) as server:
            assert (await server.ask(headers=bearer(BOB))).status_code == 200
            assert (await server.ask(headers=bearer(BOB), temperature=9)).status_code == 400, "this one counts too"
            response = await server.ask(headers=bearer(BOB))
            assert refused(response) == (429, "rate_limit_exceeded", "rate_limit_error")
            assert 50 <= int(response.headers["retry-after"]) <= 60
            assert (await request(server, "GET", "/v1/models", BOB)).status_code == 200
            assert (await server.ask(headers=bearer(ALICE))).status_code == 200

    asyncio.run(scenario())


def test_streams_beyond_a_keys_are_refused_and_others_are_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with limited(tmp_path, FakeService(hanging(["Hel"])), streams=1) as server:
            first = asyncio.create_task(server.ask(headers=bearer(BOB), stream=True))
            other = asyncio.create_task(server.ask(headers=bearer(ALICE), stream=True))
            await until(lambda: server.service.running == 2)
            response = await server.ask(headers=bearer(BOB), stream=True)
            assert refused(response) == (429, "rate_limit_exceeded", "rate_limit_error")
            assert response.headers["retry-after"] == "1"

            first.cancel()
            await until(lambda: server.service.running == 1)
            server.service.script = saying("Hi")
            assert (await server.ask(headers=bearer(BOB))).status_code == 200
            other.cancel()
            await until(lambda: server.service.running == 0)

    asyncio.run(scenario())


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "script",
    [
        saying("Hi"),
        failing(EndpointUnavailable("gone", "phone")),
        failing(EndpointUnavailable("gone", "phone"), after=["Hel"]),
        failing(ValueError("a fault"), after=["Hel"]),
    ],
)
def test_what_a_request_cost_is_charged_however_it_ended_and_only_once(
    script: Script, stream: bool, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with limited(tmp_path, FakeService(script), usd=1.0) as server:
            await server.ask(headers=bearer(BOB), stream=stream)
            await until(lambda: server.surface.desk.admission.running == 0)
            assert spent(tmp_path, "bob") == REPORT["cost_usd"] == 0.75
            assert (await server.ask(headers=bearer(BOB), model="other")).status_code == 404
            assert spent(tmp_path, "bob") == 0.75, "nothing ran"
            await server.ask(headers=bearer(BOB), stream=stream)
            await until(lambda: server.surface.desk.admission.running == 0)
            response = await server.ask(headers=bearer(BOB))
            assert refused(response) == (429, "insufficient_quota", "insufficient_quota")
            assert "retry-after" not in response.headers
            assert len(server.service.requests) == 3
            assert (await server.ask(headers=bearer(ALICE), model="other")).status_code == 404

        async with limited(tmp_path, usd=1.0, usd_per_day=1.0) as again:
            assert refused(await again.ask(headers=bearer(BOB)))[1] == "insufficient_quota"
        async with limited(tmp_path, usd_per_day=1.0) as again:
            response = await again.ask(headers=bearer(BOB))
            assert 1 <= int(response.headers["retry-after"]) <= 86_400

    asyncio.run(scenario())


@pytest.mark.parametrize("after", [(), ("Hel",)])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_pays_for_what_ran(after: tuple[str, ...], stream: bool, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with limited(tmp_path, FakeService(hanging(after)), usd=1.0) as server:
            leaving = asyncio.create_task(server.ask(headers=bearer(BOB), stream=stream))
            await until(lambda: server.service.running == 1)
            leaving.cancel()
            await until(lambda: server.service.running == 0 and spent(tmp_path, "bob") > 0)
            assert spent(tmp_path, "bob") == 0.75

    asyncio.run(scenario())


def test_the_official_client_does_not_ask_again_when_its_budget_is_spent(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with limited(tmp_path, usd=0.0) as server:
            url = f"http://127.0.0.1:{server.port}/v1"
            async with openai.AsyncOpenAI(base_url=url, api_key=BOB, max_retries=5) as bob:
                with pytest.raises(openai.RateLimitError) as spent:
                    await bob.chat.completions.create(model="disco", messages=[{"role": "user", "content": "Hi"}])
            assert spent.value.code == "insufficient_quota"
            assert 'disco_requests_total{code="insufficient_quota"} 1.0' in server.surface.metrics.render().decode()

    asyncio.run(scenario())
