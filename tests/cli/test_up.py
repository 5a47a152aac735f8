"""`disco up` without Ray: waiting, announcing, and how each way of ending looks from outside."""

from __future__ import annotations

import io
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from actors.engines.models import FetchError
from serve_app.cli import launch
from serve_app.cli import up as up_module
from serve_app.cli.configfile import Configuration, load
from serve_app.cli.engines import MissingModel
from serve_app.cli.exits import FAILED, OK, UNFIT
from serve_app.cli.launch import LaunchFailed, prepare, ray_cpus
from serve_app.cli.ready import Readiness
from serve_app.cli.signals import Stopped
from serve_app.cli.up import GRACE, POLL, START_LIMIT, announce, curl, disco, up, wait_until_ready
from serve_app.extras import installing
from serve_app.settings import AppSettings

URL = "http://127.0.0.1:8000"
WARM = Readiness(True, {}, ("cloud", "phone"))
HALF = Readiness(True, {"phone": "loading"}, ("cloud",))
COLD = Readiness(False, {"cloud": "starting", "phone": ""}, ())


class World:
    """A clock that only ``sleep`` moves, and a service whose state is a function of it."""

    def __init__(self, state: Callable[[float], Readiness | None], failure: Callable[[float], str | None]) -> None:
        self.time = 100.0
        self.shown: list[str] = []
        self._state = state
        self._failure = failure

    @property
    def elapsed(self) -> float:
        return self.time - 100.0

    def sleep(self, seconds: float) -> None:
        self.time += seconds

    def wait(self) -> Readiness:
        return wait_until_ready(
            lambda: self._state(self.elapsed),
            lambda: self._failure(self.elapsed),
            self.shown.append,
            lambda: self.time,
            self.sleep,
        )


def world(state: Callable[[float], Readiness | None], failure: Callable[[float], str | None] = lambda _: None) -> World:
    return World(state, failure)


# --- waiting ----------------------------------------------------------------------------------------------------


def test_ready_at_once() -> None:
    there = world(lambda _: WARM)
    assert there.wait() is WARM
    assert there.elapsed == 0
    assert there.shown == []


def test_nothing_then_cold_then_warm() -> None:
    there = world(lambda t: None if t < 1 else COLD if t < 2 else WARM)
    assert there.wait() is WARM
    assert there.elapsed == 2
    assert list(dict.fromkeys(line.rpartition(" (")[0] for line in there.shown)) == [
        "waiting for the application",
        "waiting for cloud (starting), phone",
    ]


def test_the_last_endpoint_has_its_grace_and_no_more() -> None:
    there = world(lambda t: COLD if t < 3 else HALF)
    assert there.wait() is HALF
    assert 3 + GRACE <= there.elapsed <= 3 + GRACE + POLL


def test_an_endpoint_that_comes_within_the_grace_is_waited_for() -> None:
    there = world(lambda t: HALF if t < GRACE / 2 else WARM)
    assert there.wait() is WARM
    assert there.elapsed == GRACE / 2


def test_a_failed_deployment_ends_the_waiting() -> None:
    there = world(lambda _: COLD, lambda t: "no such module" if t >= 1 else None)
    with pytest.raises(LaunchFailed, match="no such module"):
        there.wait()
    assert there.elapsed == 1


@pytest.mark.parametrize(("state", "missing"), [(None, "the application"), (COLD, "cloud (starting), phone")])
def test_patience_ends_and_what_is_missing_is_named(state: Readiness | None, missing: str) -> None:
    there = world(lambda _: state)
    with pytest.raises(LaunchFailed) as failed:
        there.wait()
    assert failed.value.message.endswith(f"missing: {missing}")
    assert START_LIMIT <= there.elapsed <= START_LIMIT + POLL


def test_names_and_reasons_are_no_markup() -> None:
    there = world(lambda t: Readiness(False, {"cloud": "[red]x[/red]"}, ()) if t < 1 else WARM)
    there.wait()
    console, out = page()
    console.print(there.shown[0])
    assert out.getvalue() == "waiting for cloud ([red]x[/red]) (0 s)\n"


# --- announcing -------------------------------------------------------------------------------------------------


def page() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=60, color_system=None), out


def words_of(command: str) -> tuple[str, dict[str, object]]:
    """The URL and the body that a shell would hand over."""
    program, flag, url, header, kind, option, body = shlex.split(command)
    assert (program, flag, header, option) == ("curl", "-N", "-H", "-d")
    assert kind == "Content-Type: application/json"
    return url, json.loads(body)


@pytest.mark.parametrize("model", ["disco", 'it\'s a "model" [b]x[/b] $HOME :cloud:', "grün"])
def test_the_curl_can_be_pasted(model: str) -> None:
    url, body = words_of(curl(URL, model))
    assert url == f"{URL}/v1/chat/completions"
    assert body["model"] == model
    assert (body["stream"], body["disco"]) == (True, {"report": True})


def test_the_curl_takes_the_key_from_the_environment() -> None:
    words = shlex.split(curl(URL, "disco", keyed=True))
    assert words[3:5] == ["-H", "Authorization: Bearer $DISCO_API_KEY"]
    assert '"Authorization: Bearer $DISCO_API_KEY"' in curl(URL, "disco", keyed=True), "where a shell fills it in"


def with_model(model: str) -> Configuration:
    configuration = load("simulated")
    return replace(configuration, app=AppSettings(endpoints=configuration.app.endpoints, models={model: {}}))


@pytest.mark.parametrize("model", ["disco", "[red]odd[/red] :cloud:"])
def test_the_announcement_holds_the_curl_on_one_line_however_narrow_the_terminal(model: str) -> None:
    console, out = page()
    announce(with_model(model), URL, HALF, 12.4, console)
    lines = out.getvalue().splitlines()
    assert lines[0] == f"ready after 12 s at {URL}  (Ctrl-C stops it)"
    assert any("not ready yet: phone: loading" in line for line in lines)
    (command,) = [line for line in lines if line.startswith("curl ")]
    assert words_of(command)[1]["model"] == model
    assert f'or: {disco()} chat --url {URL} "Why is the sky blue?"' in lines
    assert f"The page is at {URL}/. Or try it from another terminal:" in " ".join(out.getvalue().split())


def test_the_hint_names_a_command_that_works_in_any_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, other = tmp_path / "our bin" / "disco", tmp_path / "other" / "disco"
    for program in (ours, other):
        program.parent.mkdir()
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(ours.parent))
    assert disco(ours) == "disco"
    for path in (other.parent, tmp_path):
        monkeypatch.setenv("PATH", str(path))
        assert shlex.split(disco(ours)) == [str(ours)]
    assert disco(tmp_path / "nowhere") == "disco"


# --- ways to end ------------------------------------------------------------------------------------------------


@pytest.fixture
def configuration() -> Configuration:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return load("simulated", probe.getsockname()[1])


def ended_by(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> list[str]:
    """Let the start of Ray end like that; what has been started and stopped."""
    steps: list[str] = []

    @contextmanager
    def running(configuration: Configuration) -> Iterator[None]:
        steps.append("started")
        try:
            yield
        finally:
            steps.append("stopped")

    def ask(url: str) -> Readiness:
        raise error

    monkeypatch.setattr(up_module, "running", running)
    monkeypatch.setattr(up_module.ready, "ask", ask)
    return steps


def test_a_signal_ends_it_well(configuration: Configuration, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = ended_by(monkeypatch, Stopped())
    console, out = page()
    assert up(configuration, console) == OK
    assert steps == ["started", "stopped"]
    assert out.getvalue().endswith("stopped\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_signal_stops_and_a_second_one_does_not_disturb(
    number: signal.Signals, configuration: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = ended_by(monkeypatch, AssertionError("a signal comes first"))

    def ask(url: str) -> Readiness:
        with pytest.raises(Stopped):
            signal.raise_signal(number)
        signal.raise_signal(number)
        steps.append("undisturbed")
        raise Stopped

    monkeypatch.setattr(up_module.ready, "ask", ask)
    before = signal.getsignal(number)
    assert up(configuration, page()[0]) == OK
    assert steps == ["started", "undisturbed", "stopped"]
    assert signal.getsignal(number) is before


def test_a_failed_start_is_told_with_its_reason_and_its_logs(
    configuration: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = ended_by(monkeypatch, LaunchFailed("[x] is not there", Path("somewhere/disco-logs")))
    console, out = page()
    assert up(configuration, console) == FAILED
    assert steps == ["started", "stopped"]
    assert "[x] is not there" in out.getvalue()
    assert "somewhere/disco-logs" in out.getvalue()


def test_a_failed_start_keeps_its_logs_and_nothing_else(
    configuration: Configuration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: Configuration, directory: Path) -> None:
        (directory / "log").write_text("why")
        raise LaunchFailed("no")

    monkeypatch.setattr(launch, "DIRECTORIES", tmp_path)
    monkeypatch.setattr(launch, "_start", start)
    monkeypatch.setattr(launch, "_shut_down", lambda _: None)
    with pytest.raises(LaunchFailed) as failed, launch.running(configuration, {}):
        pass
    assert [failed.value.logs] == list(tmp_path.iterdir())
    assert failed.value.logs is not None
    assert (failed.value.logs / "log").read_text() == "why"


@pytest.mark.parametrize("chosen", [None, "/elsewhere"])
def test_temporary_files_go_with_the_service_unless_the_user_has_a_place_for_them(
    configuration: Configuration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str | None
) -> None:
    seen = []
    if chosen is None:
        monkeypatch.delenv(launch.TEMPORARY, raising=False)
    else:
        monkeypatch.setenv(launch.TEMPORARY, chosen)
    monkeypatch.setattr(launch, "DIRECTORIES", tmp_path)
    monkeypatch.setattr(
        launch, "_start", lambda _, directory: seen.append((os.environ[launch.TEMPORARY], str(directory)))
    )
    monkeypatch.setattr(launch, "_shut_down", lambda _: None)
    with launch.running(configuration, {}):
        pass
    ((place, directory),) = seen
    assert place == (chosen or directory)
    assert os.environ.get(launch.TEMPORARY) == chosen


def test_a_router_that_no_node_may_host_is_told_with_the_remedy_and_without_logs(
    configuration: Configuration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = {"ray.io/node-id": "1"}
    router = {"label_selector": {"tier": "router", "zone": "!far"}}
    settings = AppSettings.model_validate({"endpoints": configuration.app.endpoints, "router": router})
    launch.require_place(settings, [head, {"tier": "router"}])

    def start(*_: object) -> None:
        launch.require_place(settings, [head])

    monkeypatch.setattr(launch, "DIRECTORIES", tmp_path)
    monkeypatch.setattr(launch, "_start", start)
    monkeypatch.setattr(launch, "_shut_down", lambda _: None)
    with pytest.raises(LaunchFailed) as failed, launch.running(configuration, {}):
        pass
    assert "router.label_selector: the router wants a node with tier: router, and" in failed.value.message
    assert "remove it for this machine, or `serve deploy`" in failed.value.message
    assert (failed.value.logs, list(tmp_path.iterdir())) == (None, [])


def test_doubts_are_told_before_the_start(configuration: Configuration, monkeypatch: pytest.MonkeyPatch) -> None:
    ended_by(monkeypatch, Stopped())
    monkeypatch.setattr(up_module, "doubts", lambda _: ["[x] does nothing"])
    console, out = page()
    assert up(configuration, console) == OK
    assert out.getvalue().startswith("warning: [x] does nothing\n")


def test_a_port_in_use_starts_nothing(configuration: Configuration, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = ended_by(monkeypatch, Stopped())
    console, out = page()
    with socket.socket() as other:
        other.bind(("127.0.0.1", configuration.port))
        other.listen()
        assert up(configuration, console) == UNFIT
    assert steps == []
    assert "remedy: " in out.getvalue()


def test_an_engine_whose_package_is_not_there_starts_nothing(
    configuration: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = ended_by(monkeypatch, Stopped())
    monkeypatch.setitem(sys.modules, "vllm", None)
    with_vllm = {"kind": "cloud", "engine": {"type": "vllm", "model": "m"}}
    app = AppSettings.model_validate({"endpoints": {"cloud": with_vllm}})
    console, out = page()
    assert up(replace(configuration, app=app), console) == UNFIT
    assert steps == []
    assert f"the vllm engine needs vllm\n  remedy: {installing('vllm')}" in out.getvalue()


def test_a_model_that_cannot_be_fetched_starts_nothing(
    configuration: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(name: str, progress: Callable[[str], None]) -> None:
        progress("downloading [it]")
        raise FetchError(f"{name}: no [network]")

    steps = ended_by(monkeypatch, Stopped())
    monkeypatch.setattr(up_module, "missing_models", lambda app: [MissingModel("small", 93)])
    monkeypatch.setattr(up_module, "fetch", fetch)
    console, out = page()
    assert up(configuration, console) == FAILED
    assert steps == []
    assert "downloading [it]" in out.getvalue()
    assert "small: no [network]" in out.getvalue()


# --- before Ray -------------------------------------------------------------------------------------------------


def python(script: str) -> Sequence[str]:
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    return result.stdout.split()


def test_the_commands_do_not_import_ray_before_its_switches_are_set() -> None:
    modules = "serve_app.cli.main, serve_app.cli.up, serve_app.cli.chat, serve_app.cli.configfile"
    assert python(f"import sys, {modules}; print('ray' in sys.modules)") == ["False"]


def test_ray_sees_the_switches() -> None:
    """Ray's compiled part reads them once."""
    script = """
import os
os.environ.pop("RAY_AUTH_MODE", None)
from serve_app.cli.launch import prepare
prepare()
from serve_app.cli.configfile import load
load("simulated")
from ray._raylet import AuthenticationMode, get_authentication_mode
print(get_authentication_mode() == AuthenticationMode.TOKEN)
"""
    assert python(script) == ["True"]


@pytest.mark.parametrize("given", [{}, {"RAY_AUTH_TOKEN": "mine"}, {"RAY_AUTH_TOKEN_PATH": "/mine"}])
def test_every_service_has_a_ray_token_of_its_own_unless_the_user_gives_one(given: dict[str, str]) -> None:
    script = f"""
import os
for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
    os.environ.pop(name, None)
os.environ.update({given!r})
from serve_app.cli.launch import prepare
from serve_app.extras import installing
prepare()
print(*[os.environ.get(name, "none") for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")])
"""
    token, path = python(script)
    if given:
        assert (token, path) == (given.get("RAY_AUTH_TOKEN", "none"), given.get("RAY_AUTH_TOKEN_PATH", "none"))
    else:
        assert (len(token), path) == (64, "none")
        assert python(script)[0] != token


@pytest.mark.parametrize("mode", ["disabled", "Disabled", "", "off"])
def test_a_ray_without_authentication_is_not_started(
    mode: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    assert up_module.main(["simulated"]) == UNFIT
    assert "unset RAY_AUTH_MODE" in capsys.readouterr().err
    assert launch.os.environ["RAY_AUTH_MODE"] == mode


def test_switches_that_come_too_late_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    assert ray
    monkeypatch.setenv("SWITCH", "1")
    prepare({"SWITCH": "1"})
    with pytest.raises(LaunchFailed, match="before its switches"):
        prepare({"SWITCH": "2"})


def test_switches_are_set_while_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch.sys, "modules", {})
    monkeypatch.setenv("SWITCH", "1")
    prepare({"SWITCH": "2"})
    assert launch.os.environ["SWITCH"] == "2"


def test_ray_is_told_of_enough_cpus_for_all_replicas_at_their_most() -> None:
    engine = {"type": "simulated"}
    app = AppSettings.model_validate(
        {
            "endpoints": {
                "a": {"kind": "cloud", "engine": engine, "placement": {"num_cpus": 0.5, "max_replicas": 4}},
                "b": {"kind": "device", "engine": engine, "placement": {"num_cpus": 1.5, "replicas": 2}},
            },
            "router": {"num_cpus": 0.1, "replicas": 2},
        }
    )
    assert ray_cpus(app) == 7


@pytest.mark.parametrize(("failures", "works"), [(0, True), (1, True), (2, False)])
def test_a_ray_that_comes_up_too_late_is_started_again(
    failures: int, works: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    left, steps = [failures], []

    def init(**_: object) -> None:
        steps.append("init")
        if left[0]:
            left[0] -= 1
            raise RuntimeError("The current node timed out during startup")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: steps.append("shutdown"))
    if works:
        launch._start_ray(1, tmp_path)
        assert steps == ["init", "shutdown"] * failures + ["init"]
    else:
        with pytest.raises(LaunchFailed, match="busy"):
            launch._start_ray(1, tmp_path)
