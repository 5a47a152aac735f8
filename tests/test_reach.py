"""What keys, owners and endpoints promise each other: never to be kept, or without effect."""

from __future__ import annotations

from typing import Any

import pytest

from serve_app.keys import BadKeys, configured_keys
from serve_app.reach import without_effect
from serve_app.settings import AppSettings

ENGINE = {"type": "simulated"}
CLOUD, PHONE = {"kind": "cloud", "engine": ENGINE}, {"kind": "device", "engine": ENGINE}
OPERATOR = {"scope": "operator"}


def app(keys: dict[str, Any], **fields: Any) -> AppSettings:
    hashed = {name: {"sha256": f"{rank:064x}"} | key for rank, (name, key) in enumerate(keys.items())}
    access = {"keys": hashed, "spending_folder": "/var/lib/disco"}
    return AppSettings.model_validate({"endpoints": {"cloud": CLOUD, "phone": PHONE}, "access": access} | fields)


def owned(**owners: list[str]) -> dict[str, Any]:
    kinds = {"cloud": CLOUD, "phone": PHONE}
    return {name: kind | {"owners": owners.get(name, [])} for name, kind in kinds.items()}


@pytest.mark.parametrize(
    ("keys", "fields", "problem"),
    [
        (
            {"alice": {"endpoints": ["cloud"]}, "bob": {}},
            {"endpoints": owned(phone=["alice", "bob"])},
            "endpoints.phone.owners: the key alice may use cloud only",
        ),
        (
            {"alice": {"pin": "cloud_only"}},
            {"endpoints": owned(phone=["alice"])},
            "endpoints.phone.owners: the key alice is pinned to cloud_only",
        ),
        (
            {"alice": {}, "probe": {"scope": "metrics"}},
            {"endpoints": owned(phone=["alice", "probe"])},
            "endpoints.phone.owners: the key probe has `scope: metrics`",
        ),
        ({"alice": {}}, {"endpoints": owned(phone=["alcie"])}, "endpoints.phone.owners: no API key named 'alcie'"),
        (
            {"alice": {}, "bob": {"endpoints": ["phone"]}},
            {"endpoints": owned(phone=["alice"])},
            "access.keys.bob.endpoints: none that serves a model is left for this key",
        ),
        (
            {"alice": {"endpoints": ["phone"]}},
            {"models": {"disco": {"endpoints": ["cloud"]}}},
            "access.keys.alice.endpoints: none that serves a model",
        ),
        (
            {"alice": {}, "probe": {"scope": "device", "endpoints": ["phone", "cloud"]}},
            {},
            "access.keys.probe.endpoints: cloud is a cloud",
        ),
        (
            {"boss": OPERATOR, "alice": {"endpoints": ["phone"]}},
            {"devices": {"allow": ["192.168.1.0/24"]}},
            "devices.allow: no key could own a device",
        ),
    ],
)
def test_what_can_never_work_is_a_problem(keys: dict[str, Any], fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadKeys) as refused:
        configured_keys(app(keys, **fields))
    (found,) = refused.value.problems
    assert found.startswith(problem)


@pytest.mark.parametrize(
    ("keys", "fields"),
    [
        ({"alice": {}, "bob": {"pin": "cloud_only"}}, {"endpoints": owned(phone=["alice"])}),
        ({"alice": {"endpoints": ["phone"]}, "probe": {"scope": "device", "endpoints": ["phone"]}}, {}),
        (
            {"boss": OPERATOR, "alice": {"pin": "device_only"}},
            {"endpoints": {"cloud": CLOUD}, "devices": {"allow": ["192.168.1.0/24"]}},
        ),
    ],
)
def test_what_can_work_is_none(keys: dict[str, Any], fields: dict[str, Any]) -> None:
    settings = app(keys, **fields)
    assert list(without_effect(configured_keys(settings), settings)) == []


@pytest.mark.parametrize("network", ["169.254.0.0/16", "fe80::/10", "224.0.0.0/4"])
def test_networks_that_are_refused_whatever_is_allowed(network: str) -> None:
    with pytest.raises(ValueError, match="no device is reached at link-local or multicast"):
        app({"boss": OPERATOR, "alice": {}}, devices={"allow": [network]})


@pytest.mark.parametrize(
    ("keys", "fields", "doubt"),
    [
        (
            {"alice": {}, "probe": {"scope": "metrics", "streams": 2, "usd": 1, "endpoints": ["phone"]}},
            {},
            "key probe: endpoints, streams, usd: without effect, as `scope: metrics`",
        ),
        ({"boss": OPERATOR}, {}, "no key has `scope: api`"),
        ({"alice": {}}, {"models": {"disco": {"endpoints": ["cloud"]}}}, "endpoint phone: no model has it"),
    ],
)
def test_what_does_nothing_is_a_doubt(keys: dict[str, Any], fields: dict[str, Any], doubt: str) -> None:
    settings = app(keys, **fields)
    (found,) = without_effect(configured_keys(settings), settings)
    assert found.startswith(doubt)
