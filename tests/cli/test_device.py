"""`disco device`: what it asks a service, and what a device says of itself."""

from __future__ import annotations

import json
from collections import namedtuple
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from serve_app.cli import device as device_module
from serve_app.cli.device_state import battery_of, device_state, processor_heat, termux_state
from serve_app.cli.exits import BAD_INPUT, FAILED, INTERRUPTED, OK, UNREACHABLE
from serve_app.cli.main import app
from serve_app.devices import DeviceRegistration, DeviceReport
from tests.support.answering import answering

Battery = namedtuple("Battery", "percent secsleft power_plugged")
Reading = namedtuple("Reading", "label current")

Call = tuple[str, str, str | None, Any]


@contextmanager
def service(answers: Mapping[tuple[str, str], tuple[int, Any]]) -> Iterator[tuple[str, list[Call]]]:
    """Its URL, and what it was asked: method, path, key, body."""
    asked: list[Call] = []

    class Handler(BaseHTTPRequestHandler):
        def do_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            asked.append(
                (self.command, self.path, self.headers.get("authorization"), json.loads(body) if body else None)
            )
            status, said = answers.get((self.command, self.path), (404, {"error": {"message": "no such device"}}))
            text = b"" if said is None else json.dumps(said).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_DELETE = do_any  # noqa: N815 - the library's names

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    with answering(Handler) as url:
        yield url, asked


def run(url: str, *arguments: str, **environment: str) -> Result:
    command, *rest = arguments
    return CliRunner().invoke(
        app, ["device", command, *rest, "--url", url], env={"COLUMNS": "120", "TERM": "dumb", **environment}
    )


def test_adding_prints_the_token_alone_and_asks_for_what_a_registration_may_hold() -> None:
    with service({("POST", "/disco/devices"): (201, {"name": "phone", "token": "sk-disco-x"})}) as (url, asked):
        arguments = ["phone", "http://192.168.1.20:8080/v1", "gemma", "--owner", "alice", "--owner", "bob"]
        arguments += ["--billion", "1.5", "--slots", "2", "--serves", "disco"]
        arguments += ["--its-key-env", "PHONE_KEY", "--plaintext-key"]
        result = run(url, "add", *arguments, DISCO_API_KEY="boss", PHONE_KEY="phones-own")
    assert (result.exit_code, result.output) == (OK, "sk-disco-x\n")
    ((_, _, key, body),) = asked
    assert key == "Bearer boss"
    registration = DeviceRegistration.model_validate(body)
    assert (registration.owners, registration.slots) == (("alice", "bob"), 2)
    assert (registration.prices.parameters_billion, registration.serves) == (1.5, ("disco",))
    assert registration.api_key is not None
    assert registration.api_key.get_secret_value() == "phones-own"


@pytest.mark.parametrize(("option", "value"), [("--profile", "none.json"), ("--its-key-env", "NO_SUCH_VARIABLE")])
def test_what_cannot_be_read_is_said_before_anything_is_asked(option: str, value: str) -> None:
    with service({}) as (url, asked):
        result = run(url, "add", "phone", "http://a/v1", "m", "--owner", "alice", option, value)
    assert (result.exit_code, asked) == (BAD_INPUT, [])
    assert option in result.output


@pytest.mark.parametrize("said", [None, [1, 2], {"devices": 5, "token": None}])
def test_a_server_of_another_kind_is_told_from_ours(said: Any) -> None:
    with service({("GET", "/disco/devices"): (200, said), ("POST", "/disco/devices"): (201, said)}) as (url, _):
        answers = [run(url, "list"), run(url, "add", "phone", "http://192.168.1.20/v1", "m", "--owner", "alice")]
    for answer in answers:
        assert answer.exit_code == FAILED
        assert "says something else than a DiSCo-Serve" in answer.output


def test_listing_and_removing() -> None:
    entry = {
        "name": "phone",
        "reason": "ready",
        "owners": ["alice"],
        "address": "192.168.1.20",
        "report": {"battery": 0.5},
    }
    answers = {
        ("GET", "/disco/devices"): (200, {"devices": [entry]}),
        ("DELETE", "/disco/devices/phone"): (204, None),
    }
    with service(answers) as (url, asked):
        shown = run(url, "list")
        listed = run(url, "list", "--json")
        removed = run(url, "remove", "phone")
        missing = run(url, "remove", "a/b")
    assert all(word in shown.output for word in ("phone", "ready", "alice", "192.168.1.20", "battery 0.5"))
    assert json.loads(listed.output) == [entry]
    assert (removed.exit_code, removed.output) == (OK, "")
    assert (missing.exit_code, asked[-1][1]) == (BAD_INPUT, "/disco/devices/a%2Fb")
    assert "no such device" in missing.output


def test_a_heartbeat_says_what_the_device_knows_and_how_busy_its_server_is() -> None:
    slots = [{"id": 0, "is_processing": True}, {"id": 1, "is_processing": False}]
    answers = {("POST", "/disco/devices/phone/report"): (204, None), ("GET", "/slots"): (200, slots)}
    with service(answers) as (url, asked):
        result = run(url, "report", "phone", "--once", "--server", url, DISCO_DEVICE_TOKEN="sk-disco-t")
    assert result.exit_code == OK, result.output
    (_, _, at_home, _), (_, path, key, body) = asked
    assert (at_home, path, key) == (None, "/disco/devices/phone/report", "Bearer sk-disco-t")
    report = DeviceReport.model_validate(body)
    assert report.load == 1
    assert report.battery is not None or report.charging


def test_a_server_that_does_not_say_leaves_the_load_out() -> None:
    with service({("POST", "/disco/devices/phone/report"): (204, None)}) as (url, asked):
        result = run(url, "report", "phone", "--once", "--server", url)
    assert result.exit_code == OK
    assert "--server: HTTP 404" in result.output
    assert "load" not in asked[-1][3]


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds between heartbeats, none of which passes; Ctrl-C comes in the third pause."""
    paused: list[float] = []

    async def turn(seconds: float) -> None:
        paused.append(seconds)
        if len(paused) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(device_module.asyncio, "sleep", turn)
    return paused


@pytest.mark.usefixtures("turns")
def test_a_server_that_stays_mute_is_told_once() -> None:
    with service({("POST", "/disco/devices/phone/report"): (204, None)}) as (url, asked):
        result = run(url, "report", "phone", "--every", "1", "--server", "http://127.0.0.1:9/v1")
    assert (result.exit_code, len(asked)) == (OK, 3)
    assert result.output.count("--server: no service answers at http://127.0.0.1:9/slots") == 1


def test_what_cannot_be_the_devices_own_server_is_told_before_anything_is_sent() -> None:
    with service({}) as (url, asked):
        result = run(url, "report", "phone", "--server", "127.0.0.1:8080")
    assert (result.exit_code, asked) == (BAD_INPUT, [])
    assert "--server: must be like http" in result.output


@pytest.mark.parametrize(
    ("token", "words"), [("sk-unknown", "with --token, or in DISCO_DEVICE_TOKEN"), ("a b", "--token: no API key has")]
)
def test_a_wrong_token_has_the_remedy_of_a_device(token: str, words: str) -> None:
    unknown = {"error": {"message": "this API key is not known here"}}
    with service({("POST", "/disco/devices/phone/report"): (401, unknown)}) as (url, _):
        result = run(url, "report", "phone", "--once", "--token", token)
    assert result.exit_code == BAD_INPUT
    assert words in " ".join(result.output.split())
    assert token not in result.output
    assert "--key" not in result.output


def test_where_no_device_has_joined_it_says_how_one_does() -> None:
    with service({("GET", "/disco/devices"): (200, {"devices": []})}) as (url, _):
        assert run(url, "list").output == "no device has joined; `disco device add` registers one\n"
        assert json.loads(run(url, "list", "--json").output) == []


@pytest.mark.parametrize("command", [["list"], ["remove", "phone"], ["report", "phone", "--once"]])
def test_a_call_that_is_broken_off_is_no_success(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(device_module, "open_session", interrupted)
    assert run("http://127.0.0.1:9", *command).exit_code == INTERRUPTED


def test_once_or_for_ever_a_refusal_ends_it_and_an_absence_does_not(turns: list[float]) -> None:
    with service({}) as (url, asked):
        assert run(url, "report", "phone", "--every", "1").exit_code == BAD_INPUT
        assert len(asked) == 1
    assert run(url, "report", "phone", "--once").exit_code == UNREACHABLE
    assert run(url, "report", "phone", "--every", "7").exit_code == OK
    assert all(0 <= seconds <= 7 for seconds in turns)


# --- what is read -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("battery", "said"),
    [
        (None, {"charging": True}),
        (Battery(62, 0, False), {"battery": 0.62, "charging": False}),
        (Battery(101, 0, True), {"battery": 1.0, "charging": True}),
        (Battery(50, 0, None), {"battery": 0.5}),
    ],
)
def test_batteries(battery: Any, said: dict[str, Any]) -> None:
    assert battery_of(battery) == said


def test_the_processors_hottest_sensor_counts() -> None:
    sensors = {"coretemp": [Reading("a", 51.0), Reading("b", 63.0)], "nvme": [Reading("c", 80.0)]}
    assert processor_heat(sensors) == 63.0
    assert processor_heat({"nvme": [Reading("c", 80.0)]}) is None


def test_a_phone_with_termux() -> None:
    said = '{"health": "GOOD", "percentage": 74, "plugged": "UNPLUGGED", "status": "DISCHARGING", "temperature": 31.9}'
    assert termux_state(said) == {"battery": 0.74, "charging": False, "temperature_celsius": 31.9}
    assert termux_state(said.replace("UNPLUGGED", "PLUGGED_AC"))["charging"]


@given(st.text() | st.recursive(st.none() | st.floats() | st.text(), st.lists, max_leaves=3).map(json.dumps))
def test_what_termux_never_says_is_nothing(said: str) -> None:
    assert termux_state(said) == {}


def test_what_this_machine_says_is_a_report() -> None:
    DeviceReport.model_validate(device_state())
