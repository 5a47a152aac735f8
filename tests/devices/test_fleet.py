"""Registrations and reports, and how several routers come to know the same ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from serve_app.body import read_body
from serve_app.core.energy import DeviceState
from serve_app.core.errors import AccessDenied, DiscoError, InvalidRequest, UnknownDevice
from serve_app.devices import DeviceRegistration, DeviceReport
from serve_app.fleet import Fleet, FleetLog
from serve_app.keys import BadKeys, configured_keys, new_key, sha256_of
from serve_app.settings import AppSettings

KEYS = {name: {"sha256": sha256_of(new_key().encode())} for name in ("alice", "bob", "limited", "clouds", "operator")}
KEYS["limited"] |= {"endpoints": ["cloud"]}  # type: ignore[dict-item]
KEYS["clouds"] |= {"pin": "cloud_only"}
KEYS["operator"] |= {"scope": "operator"}
APP: dict[str, Any] = {
    "endpoints": {
        "cloud": {"kind": "cloud", "engine": {"type": "simulated"}},
        "laptop": {"kind": "device", "engine": {"type": "simulated"}},
    },
    "access": {"keys": KEYS},
    "devices": {"allow": ["192.168.1.0/24"], "heartbeat_seconds": 10, "missed": 3, "most": 2},
}
PHONE: dict[str, Any] = {
    "name": "phone",
    "base_url": "http://192.168.1.20:8080/v1",
    "model": "gemma",
    "owners": ["alice"],
}


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def make(author: str = "r1", clock: Callable[[], float] | None = None, **app: Any) -> Fleet:
    settings = AppSettings.model_validate(APP | app)
    return Fleet(settings, configured_keys(settings), author, clock or Clock())


def register(fleet: Fleet, **fields: Any) -> str:
    return asyncio.run(fleet.register(DeviceRegistration.model_validate(PHONE | fields)))


def bearer(token: str) -> list[str]:
    return [f"Bearer {token}"]


def test_a_registered_device_is_known_by_its_token_of_which_nothing_is_kept() -> None:
    fleet = make()
    token = register(fleet)
    assert fleet.devices["phone"].address == "192.168.1.20"
    assert fleet.recognises("phone", bearer(token))
    assert not fleet.recognises("phone", bearer(new_key()))
    assert not fleet.recognises("phone", [])
    assert not fleet.recognises("tablet", bearer(token))
    assert token not in repr(fleet.devices)
    again = register(fleet)
    assert not fleet.recognises("phone", bearer(token))
    assert fleet.recognises("phone", bearer(again))


@pytest.mark.parametrize(
    ("fields", "param", "told"),
    [
        ({"name": "cloud"}, "name", "configured endpoint"),
        ({"owners": ["nobody"]}, "owners", "known: alice, bob, limited, clouds"),
        ({"owners": ["operator"]}, "owners", "asks for answers"),
        ({"owners": ["alice", "limited"]}, "owners", "the key limited may use cloud"),
        ({"owners": ["clouds"]}, "owners", "clouds only"),
        ({"serves": ["disko"]}, "serves", "known: disco"),
        ({"prior": "pocket-calculator"}, "prior", "s23-gemma3-1b-q4"),
        ({"base_url": "http://192.168.7.20:8080/v1"}, "base_url", "devices.allow"),
        ({"base_url": "ftp://192.168.1.20/v1"}, "base_url", "http"),
        ({"base_url": "http://user:pw@192.168.1.20:8080/v1"}, "base_url", "user name"),
    ],
)
def test_a_registration_that_cannot_be_kept_is_refused(fields: dict[str, Any], param: str, told: str) -> None:
    fleet = make()
    with pytest.raises(InvalidRequest, match=told) as refused:
        register(fleet, **fields)
    assert refused.value.param == param
    assert not fleet.devices


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"owners": []}, "owners"),
        ({"owners": None}, "owners"),
        ({"api_key_env": "OPENAI_API_KEY"}, "api_key_env"),
        ({"chat_template": "/etc/passwd"}, "chat_template"),
        ({"continues_by": "completion"}, "continues_by"),
        ({"prior": "../../etc/passwd"}, "prior"),
        ({"slots": 0}, "slots"),
        ({"api_key": "passwd in clear"}, "api_key"),
        ({"api_key": "passwd"}, "api_key"),
        ({"name": "a b"}, "name"),
        ({"prices": {"input_usd_per_mtok": -1}}, "prices.input_usd_per_mtok"),
    ],
)
def test_a_body_that_is_no_registration_names_the_field(fields: dict[str, Any], param: str | None) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_body(DeviceRegistration, json.dumps(PHONE | fields).encode())
    assert refused.value.param == param
    assert refused.value.message.startswith(next(iter(fields)))
    assert "passwd" not in refused.value.message


def test_registration_is_off_unless_networks_are_named() -> None:
    with pytest.raises(AccessDenied, match=r"devices\.allow"):
        register(make(devices={}))
    with pytest.raises(ValueError, match="scope: operator"):
        AppSettings.model_validate(APP | {"access": {}})


def test_somebody_must_be_able_to_register() -> None:
    keys = {name: key for name, key in KEYS.items() if name != "operator"}
    settings = AppSettings.model_validate(APP | {"access": {"keys": keys}})
    with pytest.raises(BadKeys, match=r"devices\.allow: no key has `scope: operator`"):
        configured_keys(settings)


@pytest.mark.parametrize("owner", ["nobody", "operator"])
def test_owners_of_a_configured_device_are_keys_that_ask(owner: str) -> None:
    laptop = APP["endpoints"]["laptop"] | {"owners": ["alice", owner]}
    settings = AppSettings.model_validate(APP | {"endpoints": APP["endpoints"] | {"laptop": laptop}})
    with pytest.raises(BadKeys, match=rf"endpoints\.laptop\.owners: .*{owner}"):
        configured_keys(settings)
    with pytest.raises(ValueError, match=r"endpoints\.laptop\.owners: names API keys, and there are none"):
        AppSettings.model_validate(APP | {"endpoints": {"laptop": laptop}, "access": {}, "devices": {}})


def test_a_key_for_devices_that_may_still_join_is_no_contradiction() -> None:
    keys = KEYS | {"private": {"sha256": sha256_of(new_key().encode()), "pin": "device_only"}}
    app = {"endpoints": {"cloud": APP["endpoints"]["cloud"]}, "access": {"keys": keys}}
    assert "private" in configured_keys(AppSettings.model_validate(APP | app))
    with pytest.raises(BadKeys, match="device_only leaves none"):
        configured_keys(AppSettings.model_validate(APP | app | {"devices": {}}))


def test_a_key_for_reports_names_its_devices() -> None:
    keys = KEYS | {"probe": {"sha256": sha256_of(new_key().encode()), "scope": "device"}}
    settings = AppSettings.model_validate(APP | {"access": {"keys": keys}})
    with pytest.raises(BadKeys, match=r"access\.keys\.probe\.endpoints"):
        configured_keys(settings)


def test_their_number_is_bounded() -> None:
    fleet = make()
    register(fleet)
    register(fleet, name="tablet")
    with pytest.raises(InvalidRequest, match=r"devices\.most"):
        register(fleet, name="third")
    register(fleet, name="tablet")
    fleet.remove("phone")
    register(fleet, name="third")


def test_silence_makes_a_device_absent_and_a_word_brings_it_back() -> None:
    clock = Clock()
    fleet = make(clock=clock)
    register(fleet)
    clock.now += 30.0
    assert not fleet.is_silent("phone")
    clock.now += 0.5
    assert fleet.is_silent("phone")
    fleet.hear("phone", DeviceReport(battery=0.2, load=1))
    assert not fleet.is_silent("phone")
    assert fleet.states() == {"phone": DeviceState(0.2)}
    clock.now += 31.0
    assert fleet.is_silent("phone")
    assert fleet.states() == {}


def test_configured_devices_report_too_and_clouds_do_not() -> None:
    fleet = make()
    fleet.hear("laptop", DeviceReport(battery=0.5, charging=True))
    assert fleet.states() == {"laptop": DeviceState(0.5, True)}
    unknown: list[Callable[[], object]] = [
        lambda: fleet.hear("cloud", DeviceReport()),
        lambda: fleet.hear("phone", DeviceReport()),
        lambda: fleet.remove("laptop"),
        lambda: fleet.remove("phone"),
    ]
    for act in unknown:
        with pytest.raises(UnknownDevice):
            act()


@pytest.mark.parametrize("report", [{"battery": 1.5}, {"battery": "full"}, {"load": -1}, {"temperature_celsius": 900}])
def test_a_report_that_cannot_be_is_refused(report: dict[str, Any]) -> None:
    with pytest.raises(DiscoError) as refused:
        read_body(DeviceReport, json.dumps(report).encode())
    assert isinstance(refused.value, InvalidRequest)
    assert refused.value.param == next(iter(report))


def test_what_one_router_was_told_all_know_and_one_that_restarts_learns_again() -> None:
    clock, exchange = Clock(), FleetLog("exchange")
    one, two = make("r1", clock), make("r2", clock)

    def compare(*fleets: Fleet) -> None:
        for fleet in fleets:
            exchange.merge(fleet.tell(), clock.now)
            fleet.merge(exchange.tell(clock.now))

    token = register(one)
    two.hear("laptop", DeviceReport(charging=True))
    compare(one, two, one)
    assert two.recognises("phone", bearer(token))
    assert one.states() == two.states() == {"laptop": DeviceState(charging=True)}

    reborn = make("r3", clock)
    compare(reborn)
    assert reborn.devices == one.devices
    # And an exchange that restarts learns it from the routers.
    exchange = FleetLog("exchange again")
    two.remove("phone")
    clock.now += 5
    compare(one, two, reborn, one)
    assert one.devices == two.devices == reborn.devices == {}
