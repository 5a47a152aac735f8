"""From a clone to a running command: arguments, the stamp, the installation, and what stops it."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from serve_app.cli import bootstrap
from serve_app.cli.bootstrap import Environment, Task, bring_up_to_date, newer_python, parse, port_of, report, run
from serve_app.cli.exits import BAD_INPUT, FAILED, INTERRUPTED, OK, UNFIT
from serve_app.cli.installer import Outcome, Progress, run_logged, step_of
from serve_app.cli.preflight import Finding

WELL = [Finding("Python", True, "3.12")]


class FakeInstaller:
    """Remembers what it was told to run; ``code`` is how it ends."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.commands: list[Sequence[str]] = []

    def __call__(self, command: Sequence[str], log: Path, progress: Progress) -> Outcome:
        self.commands.append(command)
        log.write_text("everything")
        return Outcome(self.code, ("the last line",))


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """An environment that looks usable, with nothing installed in it."""
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    environment = Environment(tmp_path)
    (environment.directory / "bin").mkdir(parents=True)
    (environment.directory / "pyvenv.cfg").write_text("")
    for program in (environment.python, environment.disco):
        program.write_text("#!/bin/sh\nexit 0\n")
        program.chmod(0o755)
    return environment


# --- arguments --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "task"),
    [
        (["serve"], Task(frozenset({"llama"}), ("up",))),
        (["serve", "my.yaml", "--port", "8010"], Task(frozenset({"llama"}), ("up", "my.yaml", "--port", "8010"))),
        (["demo", "--port=8010"], Task(frozenset(), ("up", "simulated", "--port=8010"))),
        (["install", "dev", "llama"], Task(frozenset({"dev", "llama"}), None)),
        (["install"], None),
        (["fly"], None),
        ([], None),
    ],
)
def test_parse(arguments: list[str], task: Task | None) -> None:
    assert parse(arguments) == task


@pytest.mark.parametrize(
    ("arguments", "port"),
    [
        ([], 8000),
        (["--port", "8010"], 8010),
        (["x.yaml", "--port=8011"], 8011),
        (["--port"], 8000),
        (["--port", "x"], 8000),
        (["--port", "²"], 8000),
        (["--port=-1"], 8000),
        (["--port=0"], 8000),
        (["--port=65536"], 8000),
        (["--port=65535"], 65535),
    ],
)
def test_port_of(arguments: list[str], port: int) -> None:
    assert port_of(arguments) == port


def test_what_it_cannot_do_is_answered_with_what_it_can(capsys: pytest.CaptureFixture[str]) -> None:
    assert bootstrap.main(["fly"]) == BAD_INPUT
    assert "install EXTRA..." in capsys.readouterr().err


def test_the_module_runs_as_the_makefile_runs_it() -> None:
    command = [sys.executable, "-m", "serve_app.cli.bootstrap", "fly"]
    result = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, check=False)
    assert result.returncode == BAD_INPUT


# --- the stamp --------------------------------------------------------------------------------------------------


def test_a_stamp_holds_while_nothing_it_speaks_of_changes(environment: Environment) -> None:
    assert not environment.is_current([])
    environment.remember({"llama", "dev"})
    assert environment.is_current([])
    assert environment.is_current(["llama"])
    assert not environment.is_current(["vllm"])
    (environment.root / "pyproject.toml").write_text("[project]\nname = 'other'\n")
    assert not environment.is_current([])
    assert environment.installed() == {"llama", "dev"}


@pytest.mark.parametrize("gone", ["python", "disco"])
def test_a_stamp_without_the_programs_is_worth_nothing(environment: Environment, gone: str) -> None:
    environment.remember([])
    getattr(environment, gone).unlink()
    assert not environment.is_current([])


def test_a_stamp_of_another_place_does_not_count(environment: Environment, tmp_path: Path) -> None:
    environment.remember([])
    moved = tmp_path.with_name(tmp_path.name + "-moved")
    tmp_path.rename(moved)
    assert not Environment(moved).is_current([])


@pytest.mark.parametrize("text", ["", "{", "[1]", "7"])
def test_a_broken_stamp_is_no_stamp(environment: Environment, text: str) -> None:
    environment.remember([])
    (stamp,) = environment.directory.glob("*.json")
    stamp.write_text(text)
    assert not environment.is_current([])
    assert environment.installed() == frozenset()


# --- the installation -------------------------------------------------------------------------------------------


def test_what_was_installed_before_stays(environment: Environment) -> None:
    environment.remember({"dev"})
    installer = FakeInstaller()
    assert bring_up_to_date(environment, frozenset({"llama"}), io.StringIO(), installer) == OK
    (command,) = installer.commands
    assert command[:4] == [str(environment.python), "-m", "pip", "install"]
    assert command[-2:] == ["--editable", f"{environment.root}[dev,llama]"]
    assert environment.is_current(["dev", "llama"])


def test_no_extras_need_no_brackets(environment: Environment) -> None:
    installer = FakeInstaller()
    bring_up_to_date(environment, frozenset(), io.StringIO(), installer)
    assert installer.commands[0][-1] == str(environment.root)


def test_a_failed_installation_shows_its_end_and_leaves_no_stamp(environment: Environment) -> None:
    environment.remember(["dev"])
    out = io.StringIO()
    assert bring_up_to_date(environment, frozenset({"llama"}), out, FakeInstaller(1)) == FAILED
    assert not environment.is_current([])
    said = out.getvalue()
    assert "the last line" in said
    assert str(environment.log) in said
    assert "Run the same command again" in said


def test_an_interrupted_installation_leaves_no_stamp(environment: Environment) -> None:
    environment.remember([])

    def interrupted(command: Sequence[str], log: Path, progress: Progress) -> Outcome:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bring_up_to_date(environment, frozenset({"llama"}), io.StringIO(), interrupted)
    assert not environment.is_current([])


def test_what_is_not_ours_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "letters.txt").write_text("dear")
    out, installer = io.StringIO(), FakeInstaller()
    assert bring_up_to_date(Environment(tmp_path), frozenset(), out, installer) == UNFIT
    assert "move it away" in out.getvalue()
    assert installer.commands == []
    assert (tmp_path / ".venv" / "letters.txt").read_text() == "dear"


@pytest.mark.parametrize("program", [None, "#!/bin/sh\nexit 1\n"], ids=["gone", "too old or without pip"])
def test_an_environment_whose_python_does_not_run_is_made_anew(
    environment: Environment, program: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment.python.unlink()
    if program is not None:
        environment.python.write_text(program)
        environment.python.chmod(0o755)
    calls = tmp_path / "calls"
    maker = tmp_path / "python"
    maker.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n')
    maker.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(maker))
    assert bring_up_to_date(environment, frozenset(), io.StringIO(), FakeInstaller()) == OK
    assert calls.read_text() == f"-m venv --clear {environment.directory}\n"


# --- the whole --------------------------------------------------------------------------------------------------


def test_a_failing_preflight_stops_everything_and_says_what_to_do(environment: Environment) -> None:
    out, installer = io.StringIO(), FakeInstaller()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        task = parse(["demo", "--port", str(port)])
        assert task is not None
        assert run(task, environment, out, installer) == UNFIT
    assert installer.commands == []
    lines = out.getvalue().splitlines()
    (rank,) = [rank for rank, line in enumerate(lines) if line.startswith(f"  MISSING port {port}: ")]
    assert lines[rank + 1].strip().startswith("remedy: ")


def test_an_installation_happens_once(environment: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(bootstrap, "examine", lambda *arguments: asked.append(arguments) or WELL)
    installer = FakeInstaller()
    task = Task(frozenset({"llama"}), ("up", "--port=8010"))
    assert [run(task, environment, io.StringIO(), installer) for _ in range(2)] == [OK, OK]
    assert len(installer.commands) == 1
    root = str(environment.root)
    assert asked == [(root, True, True, "127.0.0.1", 8010), (root, True, False, "127.0.0.1", 8010)]


def test_an_installation_alone_needs_no_port(environment: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(bootstrap, "examine", lambda *arguments: asked.append(arguments) or WELL)
    assert run(Task(frozenset({"dev"}), None), environment, io.StringIO(), FakeInstaller()) == OK
    assert asked == [(str(environment.root), False, True, "127.0.0.1", None)]


def test_ctrl_c_starts_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*arguments: object) -> int:
        raise KeyboardInterrupt

    def execute(*arguments: object) -> None:
        raise AssertionError(arguments)

    monkeypatch.setattr(bootstrap, "run", interrupted)
    monkeypatch.setattr(os, "execv", execute)
    assert bootstrap.main(["demo"]) == INTERRUPTED
    assert "nothing was started" in capsys.readouterr().out


def test_all_is_well_only_if_everything_is() -> None:
    bad = Finding("disk", False, "full", "free some")
    for findings, well in ((WELL, True), ([*WELL, bad], False), ([bad, *WELL], False)):
        out = io.StringIO()
        assert report(findings, out) is well
        assert ("remedy: free some" in out.getvalue()) is not well


def test_the_newest_python_that_fits_is_taken() -> None:
    there = {"python3.10": "/a", "python3.11": "/b", "python3.13": "/c", "python3.15": "/d"}
    assert newer_python(there.get) == "/c"
    assert newer_python({"python3.10": "/a"}.get) is None


# --- the installer's output -------------------------------------------------------------------------------------


def test_output_goes_to_the_log_and_its_end_is_kept(tmp_path: Path) -> None:
    script = (
        "import sys; [print('line', i) for i in range(30)]; print('Collecting numpy', file=sys.stderr); sys.exit(3)"
    )
    out, log = io.StringIO(), tmp_path / "log"
    outcome = run_logged([sys.executable, "-c", script], log, Progress(out, "installing"), dict(os.environ), 4)
    assert outcome.code == 3
    assert sorted(outcome.tail) == sorted({*outcome.tail}) == sorted(log.read_text().splitlines()[-4:])
    assert len(log.read_text().splitlines()) == 31
    assert "downloading packages" in out.getvalue()


def test_an_interrupt_ends_the_installer_too(tmp_path: Path) -> None:
    class Interrupted(Progress):
        def step(self, step: str) -> None:
            raise KeyboardInterrupt

    script = "import os, time; print('Collecting', os.getpid(), flush=True); time.sleep(600)"
    log = tmp_path / "log"
    with pytest.raises(KeyboardInterrupt):
        run_logged([sys.executable, "-c", script], log, Interrupted(io.StringIO(), "x"), dict(os.environ), 4)
    with pytest.raises(ProcessLookupError):
        os.kill(int(log.read_text().split()[1]), 0)


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("  Building wheel for llama-cpp-python (pyproject.toml): started", "compiling llama.cpp, 5-7 minutes, once"),
        ("  Building wheel for llama-cpp-python (pyproject.toml): finished with status 'done'", None),
        ("  Preparing metadata (pyproject.toml): started", "preparing"),
        ("  Building wheel for other (setup.py): started", "building"),
        ("Collecting numpy>=1.26", "downloading packages"),
        ("Requirement already satisfied: numpy", None),
    ],
)
def test_steps(line: str, step: str | None) -> None:
    assert step_of(line) == step


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_one_line_is_rewritten_whole() -> None:
    out = Terminal()
    progress = Progress(out, "installing", Clock())
    for step in ("a long step", "short"):
        progress.step(step)
        progress.tick()
    progress.done("done")
    *shown, last = out.getvalue().removeprefix("\r").split("\r")
    assert [line.strip() for line in (*shown, last)] == [
        "installing: a long step (0:00)",
        "installing: short (0:00)",
        "installing: done (0:00)",
    ]
    assert len(shown[1]) == len(shown[0])
    assert last.endswith("\n")


def test_without_a_terminal_a_line_appears_per_kind_of_step_and_now_and_then() -> None:
    out, clock = io.StringIO(), Clock()
    progress = Progress(out, "installing", clock, quiet=30.0)
    for clock.time, step in ((1.0, "a"), (2.0, "a"), (65.0, "b"), (66.0, "a"), (67.0, "b"), (94.0, "b"), (95.0, "b")):
        progress.step(step)
        progress.tick()
    progress.done("done")
    assert out.getvalue().splitlines() == [
        "  installing: a (0:01)",
        "  installing: b (1:05)",
        "  installing: b (1:35)",
        "  installing: done (1:35)",
    ]
