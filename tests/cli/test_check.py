"""What `disco check` prints: all of it, on a terminal of any width."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from serve_app.cli.check import describe, doubts
from serve_app.cli.configfile import Configuration, load
from serve_app.cli.exits import OK
from serve_app.cli.main import app
from serve_app.settings import AppSettings, LiveSettings


def page(configuration: Configuration, width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(describe(configuration))
    return out.getvalue().splitlines()


@pytest.fixture(params=["disco", "simulated", "many"])
def configuration(request: pytest.FixtureRequest) -> Configuration:
    if request.param != "many":
        return load(request.param)
    engine = {"type": "shaped", "profile": "openai-gpt-4-1106-preview", "engine": {"type": "simulated"}}
    names = [f"endpoint-of-a-long-name-{number}" for number in range(12)]
    endpoints = {name: {"kind": "cloud", "engine": engine} for name in names}
    return replace(load("simulated"), app=AppSettings.model_validate({"endpoints": endpoints, "models": {"m": {}}}))


@pytest.mark.parametrize("width", [80, 60])
def test_nothing_is_cut(configuration: Configuration, width: int) -> None:
    narrow, wide = page(configuration, width), page(configuration, 2000)
    assert max(map(len, narrow)) <= width < max(len(line.rstrip()) for line in wide)
    assert "…" not in "".join(narrow)
    # A long name may fold beside the fact it belongs to, so letters are counted and not their order.
    assert sorted("".join("".join(narrow).split())) == sorted("".join("".join(wide).split()))


def test_what_a_newcomer_looks_for_is_there() -> None:
    text = "\n".join(page(load("simulated"), 80))
    for fact in ("openai-gpt-4-1106-preview", "s23-gemma3-1b-q4", "127.0.0.1:8000", "device-constrained", "notional"):
        assert fact in text


def with_access(**access: Any) -> list[str]:
    configuration = load("simulated")
    settings = AppSettings.model_validate({"endpoints": configuration.app.endpoints, "access": access})
    return [" ".join(line.split()) for line in page(replace(configuration, app=settings), 200)]


def test_it_says_who_may_come_in() -> None:
    assert "access this machine only, without a key" in with_access()
    assert "access everybody who can reach it" in with_access(open=True)


def test_it_says_what_each_key_may_do_and_shows_no_hash() -> None:
    alice = {"pin": "device_only", "endpoints": ["phone"], "streams": 4, "requests_per_minute": 60}
    budgets = {"usd_per_day": 0.5, "usd": 100}
    keys = {
        "alice": {"sha256": "a" * 64} | alice,
        "bob": {"sha256": "b" * 64} | budgets,
        "prometheus": {"sha256": "c" * 64, "scope": "metrics"},
    }
    lines = with_access(keys=keys, spending_folder="/var/lib/disco")
    assert "access with an API key only" in lines
    assert "key alice the API, device_only, only phone, 4 streams at once, 60 requests per minute" in lines
    assert "key bob the API, 0.5 USD per day, 100 USD altogether" in lines
    assert "key prometheus /metrics only" in lines
    assert "aaaa" not in "".join(lines)


def test_it_says_where_devices_may_join() -> None:
    configuration = load("simulated")
    keys = {"boss": {"sha256": "a" * 64, "scope": "operator"}, "alice": {"sha256": "b" * 64}}
    document = {"access": {"keys": keys}, "devices": {"allow": ["192.168.1.0/24", "fd12::/16"]}}
    settings = AppSettings.model_validate({"endpoints": configuration.app.endpoints} | document)
    lines = [" ".join(line.split()) for line in page(replace(configuration, app=settings), 200)]
    assert "devices may be registered at addresses in 192.168.1.0/24, fd12::/16" in lines
    assert "key boss /disco only" in lines


def with_settings(live: dict[str, Any] | None = None, **fields: Any) -> Configuration:
    configuration = load("simulated")
    settings = AppSettings.model_validate({"endpoints": configuration.app.endpoints} | fields)
    return replace(configuration, app=settings, live=LiveSettings.model_validate(live or {}))


def test_it_says_where_the_routers_go() -> None:
    router = {"replicas": 2, "max_per_node": 1, "label_selector": {"tier": "router", "zone": "in(a, b)"}}
    lines = [" ".join(line.split()) for line in page(with_settings(router=router), 200)]
    assert "router 2 replicas, at most 1 on a node" in lines
    assert "on nodes with tier: router and zone: in(a, b)" in lines


def test_it_doubts_what_does_nothing() -> None:
    assert doubts(load("simulated")) == []
    (of_a_price,) = doubts(with_settings({"prices": {"devices": {"cloud": {"battery": 0.5}}}}))
    assert of_a_price.startswith("prices.devices.cloud: without effect")
    (of_a_key,) = doubts(with_settings(access={"keys": {"boss": {"sha256": "a" * 64, "scope": "operator"}}}))
    assert of_a_key.startswith("no key has `scope: api`")
    # Who has a key is in a file that only the routers have.
    assert doubts(with_settings(access={"keys_file": "/no/such/keys.yaml"})) == []


def test_doubts_are_warnings_and_no_failure(tmp_path: Path) -> None:
    file = tmp_path / "doubtful.yaml"
    sound = files("configs").joinpath("simulated.yaml").read_text("utf-8")
    file.write_text(sound.replace("endpoints: [cloud, phone]", "endpoints: [cloud]"))
    result = CliRunner().invoke(app, ["check", str(file)])
    assert result.exit_code == OK
    assert result.stderr.startswith("warning: endpoint phone: no model has it")
    told = json.loads(CliRunner().invoke(app, ["check", str(file), "--json"]).stdout)
    assert (told["problems"], len(told["warnings"])) == ([], 1)
