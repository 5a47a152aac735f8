"""Devices that join, report, fall silent and vanish: the whole router but Ray, over real servers on loopback."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from serve_app.core.energy import DeviceState
from serve_app.core.errors import EndpointUnavailable, UnknownDevice
from serve_app.core.model import ChatPrompt, Message, Pin, Sampling
from serve_app.devices import DeviceReport
from serve_app.fleet import Fleet
from serve_app.hosting import DeviceHost
from serve_app.ingress import Surface, build_http_app
from serve_app.keys import configured_keys, new_key, sha256_of
from serve_app.priors import initial_state
from serve_app.service import OpenStream, StreamService
from serve_app.settings import AppSettings, LiveSettings
from serve_app.streams import ClientRequest, EndpointState, Grant, Outcome, Readiness
from serve_app.telemetry import Telemetry
from tests.engines.fake_openai import FakeServer
from tests.engines.openai_support import until
from tests.engines.scripted_http import Act, ScriptedServer, answer, delta, hung_up, page, refusal, silent, stream
from tests.support.scripted import ScriptedEndpoint, words
from tests.support.session_stage import CLOUD, PHONE

TEXT = "the sky is blue because of light"
ALICE, BOB, OPERATOR, REPORTER = (new_key() for _ in range(4))
KEYS = {
    "alice": {"sha256": sha256_of(ALICE.encode())},
    "bob": {"sha256": sha256_of(BOB.encode())},
    "boss": {"sha256": sha256_of(OPERATOR.encode()), "scope": "operator"},
    "probe": {"sha256": sha256_of(REPORTER.encode()), "scope": "device", "endpoints": ["laptop"]},
}
REMOTE = {"kind": "cloud", "engine": {"type": "simulated"}, "slots": 8}
#: A configured device, too, and a key that reports for it.
WITH_LAPTOP: dict[str, Any] = {
    "endpoints": {"cloud": REMOTE, "laptop": {"kind": "device", "engine": {"type": "simulated"}}},
    "access": {"keys": KEYS},
}
LIVE: dict[str, Any] = {
    "policy": {"name": "device-only"},
    "migration": {"mode": "off"},
    "limits": {"first_token_seconds": 2.0, "idle_seconds": 0.5},
    "reader": {"consumption_rate": 200.0},
    "prices": {"usd_per_megajoule": 1.0, "mains_usd_per_megajoule": 0.1},
}
ASK = ClientRequest("r", "disco", ChatPrompt((Message("user", "Why?"),)), Sampling(200, temperature=0.0))


class Service(StreamService):
    def readiness(self) -> Readiness:
        return Readiness(True, {"cloud": EndpointState(True, "ready")})


class Clock:
    """The loop's, and what a test adds to it."""

    ahead = 0.0

    def __call__(self) -> float:
        return asyncio.get_running_loop().time() + self.ahead


@dataclass
class Router:
    service: Service
    host: DeviceHost
    http: httpx.AsyncClient
    clock: Clock
    cloud: ScriptedEndpoint
    surface: Surface
    tokens: dict[str, str] = field(default_factory=dict)

    async def register(self, url: str, name: str = "phone", **fields: Any) -> httpx.Response:
        body = {"name": name, "base_url": url, "model": "fake", "owners": ["alice"], "continues_by": "prefill"}
        response = await self.call("POST", "/disco/devices", OPERATOR, body | fields)
        if response.status_code == 201:
            self.tokens[name] = response.json()["token"]
        return response

    async def join(self, url: str, name: str = "phone", **fields: Any) -> None:
        assert (await self.register(url, name, **fields)).status_code == 201
        await until(lambda: not self.host.is_away(name))

    async def call(self, method: str, path: str, key: str | None, body: Any = None) -> httpx.Response:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        return await self.http.request(method, path, json=body, headers=headers)

    def open(self, key: str = "alice", **fields: Any) -> OpenStream:
        return self.service.open(replace(ASK, grant=Grant(key), **fields))

    async def ask(self, key: str = "alice", **fields: Any) -> tuple[str, Outcome]:
        opened = self.open(key, **fields)
        try:
            await opened.started()
            text = "".join([part.text async for part in opened])
            return text, opened.outcome
        finally:
            await opened.aclose()


@asynccontextmanager
async def routing(**app: Any) -> AsyncIterator[Router]:
    """A cloud that writes the same text as the devices."""
    cloud = ScriptedEndpoint(CLOUD, words(TEXT, 0.05, 0.002))
    args = {
        "endpoints": {"cloud": REMOTE},
        "access": {"keys": {name: key for name, key in KEYS.items() if name != "probe"}},
        "devices": {"allow": ["127.0.0.0/8", "192.168.1.0/24"]},
    }
    settings, live, clock = AppSettings.model_validate(args | app), LiveSettings.model_validate(LIVE), Clock()
    infos = [CLOUD if name == "cloud" else replace(PHONE, id=name) for name in settings.endpoints]
    endpoints: dict[str, Any] = {info.id: ScriptedEndpoint(info, cloud.script) for info in infos} | {"cloud": cloud}
    state = initial_state(settings, live, infos)
    host = DeviceHost(Fleet(settings, configured_keys(settings), "r1", clock), settings, lambda: live, endpoints, state)
    telemetry = Telemetry(settings.telemetry, "disco-router")
    service = Service(endpoints, settings, live, state, telemetry, host)
    surface = Surface(service, settings, lambda: live, lambda: "127.0.0.1", telemetry, devices=host)
    transport = httpx.ASGITransport(build_http_app(surface))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        try:
            yield Router(service, host, http, clock, cloud, surface)
        finally:
            await host.close()


def run(main: Callable[[], Any]) -> None:
    asyncio.run(main())


# --- joining --------------------------------------------------------------------------------------------------------


def test_a_registered_device_serves_its_owner_and_nobody_else() -> None:
    async def main() -> None:
        async with routing() as router, FakeServer(TEXT, continues=["prefill"]).running() as url:
            await router.join(url)
            text, outcome = await router.ask("alice")
            assert (text, outcome.report["winner"]) == (TEXT, "phone")
            for key in ("bob", None):
                text, outcome = await router.ask(key)  # type: ignore[arg-type]
                assert (text, outcome.report["winner"]) == (TEXT, "cloud")
                assert outcome.report["eligible"] == ["cloud"]

    run(main)


def test_only_the_operators_key_registers_lists_and_removes() -> None:
    async def main() -> None:
        async with routing(**WITH_LAPTOP) as router, FakeServer(TEXT).running() as url:
            await router.join(url)
            for method, path in (
                ("GET", "/disco/devices"),
                ("POST", "/disco/devices"),
                ("DELETE", "/disco/devices/phone"),
                ("GET", "/disco/else"),
            ):
                assert (await router.call(method, path, None, {})).status_code == 401
                for key in (ALICE, REPORTER):
                    assert (await router.call(method, path, key, {})).status_code == 403
                own = await router.call(method, path, router.tokens["phone"], {})
                assert own.status_code == 401, "a device's token is no key"
            listed = (await router.call("GET", "/disco/devices", OPERATOR)).json()["devices"]
            assert [(d["name"], d["ready"], d["address"], d["owners"]) for d in listed] == [
                ("phone", True, "127.0.0.1", ["alice"])
            ]
            assert router.tokens["phone"] not in str(listed)
            assert (await router.call("DELETE", "/disco/devices/phone", OPERATOR)).status_code == 204
            gone = await router.call("DELETE", "/disco/devices/phone", OPERATOR)
            assert (gone.status_code, gone.json()["error"]["code"]) == (404, "device_not_found")
            assert (await router.call("GET", "/disco/devices", OPERATOR)).json() == {"devices": []}
            live = router.service.snapshot(router.service.readiness())
            assert [endpoint["endpoint"] for endpoint in live["endpoints"]] == ["cloud", "laptop"]
            assert (await router.ask())[1].report["winner"] == "laptop"

    run(main)


def test_it_is_off_by_default_and_where_everybody_is_let_in() -> None:
    async def main() -> None:
        async with routing(devices={}) as router:
            refused = await router.register("http://127.0.0.1:9999/v1")
            assert refused.status_code == 403
            assert "devices.allow" in refused.json()["error"]["message"]
        async with routing(devices={}, access={"open": True}) as router:
            refused = await router.register("http://127.0.0.1:9999/v1")
            assert refused.status_code == 403
            assert "scope: operator" in refused.json()["error"]["message"]

    run(main)


def test_a_name_is_resolved_once_and_its_server_still_hears_its_name() -> None:
    """Whatever the name means later: an answer of the resolver that changes leads nowhere else."""
    server = ScriptedServer([answer("hi")])

    async def main() -> None:
        async with routing() as router, server.running() as url:
            port = int(url.split(":")[2].split("/")[0])

            async def once(host: str, asked: int, **_: Any) -> list[Any]:
                return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", asked))]

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(asyncio.get_running_loop(), "getaddrinfo", once)
                assert (await router.register(f"http://phone.lan:{port}/v1", continues_by="nothing")).status_code == 201
            await until(lambda: not router.host.is_away("phone"))
            assert (await router.ask())[0] == "hi"

    run(main)
    assert {headers["Host"].split(":")[0] for _, _, headers in server.calls} == {"phone.lan"}
    assert not any("Authorization" in headers for _, _, headers in server.calls)


def test_its_own_key_goes_to_its_server_and_nowhere_else() -> None:
    server = ScriptedServer([answer("hi")])

    async def main() -> None:
        async with routing() as router, server.running() as url:
            await router.join(url, continues_by="nothing", api_key="phones-own-secret")
            assert (await router.ask())[0] == "hi"
            assert "phones-own-secret" not in (await router.call("GET", "/disco/devices", OPERATOR)).text
            assert "phones-own-secret" not in repr(router.host._fleet.devices)

    run(main)
    assert {headers["Authorization"] for _, _, headers in server.calls} == {"Bearer phones-own-secret"}


def test_a_redirect_is_not_followed() -> None:
    elsewhere = ScriptedServer([answer("secret")])
    there: list[str] = []

    async def main() -> None:
        async with routing() as router, elsewhere.running() as other:
            there.append(other)
            redirecting = ScriptedServer([refusal(307, Location=f"{other}/chat/completions")])
            async with redirecting.running() as url:
                assert (await router.register(url, continues_by="nothing")).status_code == 201
                await until(lambda: "redirect" in router.host.listing()[0]["reason"])

    run(main)
    assert not elsewhere.calls


def test_the_openapi_document_describes_what_devices_may_ask() -> None:
    async def main() -> None:
        async with routing() as router:
            document = (await router.call("GET", "/openapi.json", ALICE)).json()
            described = {(method, path) for path, calls in document["paths"].items() for method in calls}
            routes = {
                (method.lower(), route.path)
                for route in build_http_app(router.surface).routes
                if isinstance(route, Route) and route.path.startswith("/disco")
                for method in (route.methods or set()) - {"HEAD"}
            }
            assert routes
            assert routes <= described
            schemas = document["components"]["schemas"]
            for reference in re.findall(r"#/components/schemas/(\w+)", json.dumps(document)):
                assert reference in schemas
            assert set(schemas["DeviceRegistration"]["required"]) == {"name", "base_url", "model", "owners"}

    run(main)


# --- being away -----------------------------------------------------------------------------------------------------


def test_without_heartbeats_a_device_gets_nothing_and_a_pin_waits_for_it() -> None:
    async def main() -> None:
        async with routing() as router, FakeServer(TEXT).running() as url:
            await router.join(url)
            router.clock.ahead += 31
            text, outcome = await router.ask()
            assert (text, outcome.report["eligible"]) == (TEXT, ["cloud"])
            for pinned in ({"pin": Pin.DEVICE_ONLY}, {"endpoints": ("phone",)}):
                with pytest.raises(EndpointUnavailable, match="not connected at the moment: phone"):
                    router.open(**pinned)
            (entry,) = (await router.call("GET", "/disco/devices", OPERATOR)).json()["devices"]
            assert entry["reason"].startswith("away: not heard of for 3")
            beat = await router.call("POST", "/disco/devices/phone/report", router.tokens["phone"], {"battery": 0.9})
            assert beat.status_code == 204
            assert (await router.ask(pin=Pin.DEVICE_ONLY))[1].report["winner"] == "phone"
            assert not router.cloud.calls[1:]

    run(main)


def test_reports_need_the_devices_own_token_or_a_key_that_names_it() -> None:
    async def main() -> None:
        async with routing(**WITH_LAPTOP) as router, FakeServer(TEXT).running() as url:
            await router.join(url)
            await router.join(url, "tablet", owners=["bob"])
            path = "/disco/devices/phone/report"
            assert (await router.call("POST", path, None, {})).status_code == 401
            assert (await router.call("POST", path, router.tokens["tablet"], {})).status_code == 401
            for key in (ALICE, OPERATOR, REPORTER):
                assert (await router.call("POST", path, key, {})).status_code == 403
            wrong = await router.call("POST", path, router.tokens["phone"], {"battery": 7})
            assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "battery")

    run(main)


# --- vanishing ------------------------------------------------------------------------------------------------------


def test_one_that_vanishes_between_registration_and_use_costs_nobody_an_answer() -> None:
    async def main() -> None:
        async with routing() as router:
            async with FakeServer(TEXT).running() as url:
                await router.join(url)
            text, outcome = await router.ask()
            assert text == TEXT
            phone, cloud = outcome.report["legs"]
            assert (phone["endpoint"], phone["outcome"], phone["error"]) == ("phone", "failed", "endpoint_unavailable")
            assert (cloud["endpoint"], cloud["outcome"]) == ("cloud", "completed")
            opened = router.open(pin=Pin.DEVICE_ONLY)
            with pytest.raises(EndpointUnavailable, match="no connection to the server"):
                await opened.started()
            await opened.aclose()
            assert len(router.cloud.calls) == 1

    run(main)


@pytest.mark.parametrize(
    ("act", "error", "cause"),
    [
        (refusal(401), "endpoint_unavailable", "key"),
        (refusal(404), "endpoint_unavailable", "model"),
        (refusal(429, retry_after="60"), "overloaded", ""),
        (refusal(500), "endpoint_unavailable", "HTTP 500"),
        (page(), "endpoint_fault", "web page"),
        (hung_up, "endpoint_unavailable", "without an answer"),
        (silent, "endpoint_timeout", "no first token in time"),
    ],
    ids=["401", "404", "429", "500", "HTML", "hung up", "silent"],
)
def test_whatever_is_wrong_with_it_is_told_in_the_log_and_the_report_and_another_serves(
    act: Act, error: str, cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = ScriptedServer([answer("warm"), act])

    async def main() -> None:
        async with routing() as router, server.running() as url:
            await router.join(url, continues_by="nothing")
            text, outcome = await router.ask()
            assert text == TEXT
            phone, cloud = outcome.report["legs"]
            assert (phone["endpoint"], phone["outcome"], phone["error"]) == ("phone", "failed", error)
            assert cause in phone["cause"]
            assert cloud["outcome"] == "completed"
            assert f"request r: phone failed: {phone['cause']}" in caplog.text

    with caplog.at_level(logging.WARNING):
        run(main)


@pytest.mark.parametrize("manner", [{"cut": True}, {"hang": True}, {}], ids=["closes", "falls silent", "just ends"])
def test_departure_amid_an_answer_is_a_failover(manner: dict[str, bool], caplog: pytest.LogCaptureFixture) -> None:
    server = ScriptedServer([answer("warm"), stream(*map(delta, TEXT[:10]), **manner)])

    async def main() -> None:
        async with routing() as router, server.running() as url:
            await router.join(url, continues_by="nothing")
            text, outcome = await router.ask()
            assert text == TEXT
            assert [leg["outcome"] for leg in outcome.report["legs"]] == ["failed", "completed"]
            assert outcome.report["migrations"][0]["at_token"] == 10
            assert outcome.report["legs"][0]["cause"] in caplog.text

    with caplog.at_level(logging.WARNING):
        run(main)


def test_removal_amid_an_answer_is_a_failover() -> None:
    server = ScriptedServer([answer("warm"), stream(*map(delta, TEXT[:10]), hang=True)])

    async def main() -> None:
        async with routing() as router, server.running() as url:
            await router.join(url, continues_by="nothing")
            opened = router.open()
            await opened.started()
            parts = [await anext(opened)]
            router.host.remove("phone")
            parts += [part async for part in opened]
            assert "".join(part.text for part in parts) == TEXT
            assert [leg["outcome"] for leg in opened.outcome.report["legs"]] == ["failed", "completed"]
            await opened.aclose()
            with pytest.raises(UnknownDevice):
                router.host.hear("phone", DeviceReport())

    run(main)


# --- what it says of itself -----------------------------------------------------------------------------------------


def test_what_a_joule_of_it_costs_follows_what_it_says() -> None:
    prices = {"prefill_joules_per_token": 1.0, "decode_joules_per_token": 2.0}

    async def main() -> None:
        async with routing() as router, FakeServer(TEXT).running() as url:
            await router.join(url, prices=prices)
            planner = router.service._state.planner

            async def decode_usd(**report: Any) -> float:
                said = await router.call("POST", "/disco/devices/phone/report", router.tokens["phone"], report)
                assert said.status_code == 204
                return planner.costs.unit["phone"].decode

            full = await decode_usd(battery=1.0)
            assert full == pytest.approx(2.0 * 1.0 / 1e6)
            assert await decode_usd(battery=0.1) == pytest.approx(10 * full)
            assert await decode_usd(battery=0.1, temperature_celsius=45.0) == pytest.approx(20 * full)
            assert await decode_usd(battery=0.1, charging=True) == pytest.approx(full / 10)
            router.clock.ahead += 31
            router.host.refresh()
            assert planner.costs.unit["phone"].decode == pytest.approx(full)

    run(main)


def test_what_it_does_for_others_counts_as_a_queue() -> None:
    async def main() -> None:
        async with routing() as router, FakeServer(TEXT).running() as url:
            await router.join(url, slots=2)
            load = router.service._state.load
            for running, full in ((1, False), (2, True), (0, False)):
                report = {"load": running}
                await router.call("POST", "/disco/devices/phone/report", router.tokens["phone"], report)
                assert load.is_full("phone") is full
            router.clock.ahead += 31
            router.host.refresh()
            assert load.foreign == {}

    run(main)


def test_a_configured_device_reports_with_a_key_of_its_own() -> None:
    async def main() -> None:
        async with routing(**WITH_LAPTOP) as router:
            said = await router.call("POST", "/disco/devices/laptop/report", REPORTER, {"battery": 0.5})
            assert said.status_code == 204
            assert router.host._fleet.states() == {"laptop": DeviceState(0.5)}
            denied = await router.call("POST", "/disco/devices/cloud/report", REPORTER, {})
            assert denied.status_code == 403

    run(main)
