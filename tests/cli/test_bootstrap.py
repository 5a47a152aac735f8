"""From a clone to `disco up`: what is installed, when it is skipped, what is said when it fails."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from serve_app.cli.bootstrap import (
    Environment,
    Task,
    bring_up_to_date,
    main,
    newer_python,
    parse,
    port_of,
    report,
)
from serve_app.cli.installer import Outcome, Progress, clock, run_logged, step_of
from serve_app.cli.preflight import Finding

LLAMA = frozenset({"llama"})


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """An environment that looks created, around this very Python."""
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    binaries = tmp_path / ".venv" / "bin"
    binaries.mkdir(parents=True)
    (tmp_path / ".venv" / "pyvenv.cfg").write_text("")
    for name in ("python", "disco"):
        (binaries / name).write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        (binaries / name).chmod(0o755)
    return Environment(tmp_path)


class Installer:
    def __init__(self, *outcomes: Outcome) -> None:
        self.outcomes = list(outcomes)
        self.commands: list[Sequence[str]] = []

    def __call__(self, command: Sequence[str], log: Path, progress: Progress) -> Outcome:
        self.commands.append(command)
        return self.outcomes.pop(0) if self.outcomes else Outcome(0, ())


def test_the_verbs() -> None:
    assert parse(["serve", "--port", "9"]) == Task(LLAMA, ("up", "--port", "9"))
    assert parse(["demo"]) == Task(frozenset(), ("up", "simulated"))
    assert parse(["install", "dev", "llama"]) == Task(frozenset({"dev", "llama"}), None)
    assert parse([]) is parse(["install"]) is parse(["sevre"]) is None


@pytest.mark.parametrize(
    ("arguments", "port"),
    [
        ([], 8000),
        (["--port", "81"], 81),
        (["x", "--port=82"], 82),
        (["--port"], 8000),
        (["--port", "x"], 8000),
        (["--port", "70000"], 8000),
    ],
)
def test_the_port_that_is_looked_at(arguments: list[str], port: int) -> None:
    assert port_of(arguments) == port


def test_installed_once_and_again_when_something_changed(environment: Environment) -> None:
    install = Installer()
    assert not environment.is_current(LLAMA)
    assert bring_up_to_date(environment, LLAMA, io.StringIO(), install) == 0
    assert environment.is_current(LLAMA)
    assert environment.is_current(frozenset())
    assert not environment.is_current(frozenset({"llama", "dev"}))
    (environment.root / "pyproject.toml").write_text("[project]\nversion = '2'\n")
    assert not environment.is_current(LLAMA)


def test_extras_add_up(environment: Environment) -> None:
    install = Installer()
    bring_up_to_date(environment, LLAMA, io.StringIO(), install)
    bring_up_to_date(environment, frozenset({"dev"}), io.StringIO(), install)
    assert [command[-1] for command in install.commands] == [
        f"{environment.root}[llama]",
        f"{environment.root}[dev,llama]",
    ]
    assert environment.is_current(frozenset({"dev", "llama"}))


def test_a_failed_installation_shows_the_end_of_its_output_and_is_not_taken_for_done(environment: Environment) -> None:
    bring_up_to_date(environment, LLAMA, io.StringIO(), Installer())
    (environment.root / "pyproject.toml").write_text("[project]\nversion = '2'\n")
    out = io.StringIO()
    assert bring_up_to_date(environment, LLAMA, out, Installer(Outcome(7, ("no space left",)))) == 1
    assert "no space left" in out.getvalue()
    assert str(environment.log) in out.getvalue()
    assert not environment.is_current(LLAMA)


def test_an_interrupted_installation_is_not_taken_for_done(environment: Environment) -> None:
    bring_up_to_date(environment, LLAMA, io.StringIO(), Installer())

    def interrupted(command: Sequence[str], log: Path, progress: Progress) -> Outcome:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bring_up_to_date(environment, LLAMA, io.StringIO(), interrupted)
    assert not environment.is_current(LLAMA)


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "diary.txt").write_text("mine")
    install = Installer()
    assert bring_up_to_date(Environment(tmp_path), LLAMA, io.StringIO(), install) == 3
    assert not install.commands
    assert (tmp_path / ".venv" / "diary.txt").read_text() == "mine"


def test_a_venv_whose_python_is_gone_is_made_again(environment: Environment) -> None:
    environment.python.unlink()
    assert not environment.is_usable()
    out = io.StringIO()
    assert bring_up_to_date(environment, frozenset(), out, Installer()) == 0
    assert "creating" in out.getvalue()
    assert environment.is_usable()


def test_the_report_names_what_is_missing_and_the_remedy() -> None:
    out = io.StringIO()
    assert report([Finding("a", True, "fine")], out)
    assert not report([Finding("b", False, "none", "get one"), Finding("a", True, "fine")], out)
    assert "b: none\n" in out.getvalue()
    assert "remedy: get one\n" in out.getvalue()


def test_the_newest_other_python_that_fits() -> None:
    have = {"python3.12": "/a", "python3.13": "/b", "python3.10": "/c"}
    assert newer_python(have.get) == "/b"
    assert newer_python({"python3.10": "/c"}.get) is None


def test_an_unknown_verb_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sevre"]) == 2
    assert "install EXTRA" in capsys.readouterr().err


# --- the installer's output -----------------------------------------------------------------------------------------


def test_steps() -> None:
    building = "  Building wheel for llama-cpp-python (pyproject.toml): "
    assert step_of(building + "started") == "compiling llama.cpp, 5-7 minutes, once"
    assert step_of(building + "finished with status 'done'") == "installing"
    assert step_of("Collecting numpy>=1.26") == "choosing packages"
    assert step_of("  some detail") is None
    assert clock(125.9) == "2:05"


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


def test_without_a_terminal_each_step_is_a_line_and_silence_is_broken_now_and_then() -> None:
    out, clock_ = io.StringIO(), Clock()
    progress = Progress(out, "installing", clock_, quiet=30.0)
    progress.step("one")
    progress.step("one")
    for clock_.time in (10.0, 29.0, 31.0, 45.0):
        progress.tick()
    progress.done("done")
    assert out.getvalue().splitlines() == [
        "  installing: one (0:00)",
        "  installing: one (0:31)",
        "  installing: done (0:45)",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_one_line_is_rewritten_whole() -> None:
    out = Terminal()
    progress = Progress(out, "installing", Clock())
    progress.step("a long step")
    progress.tick()
    progress.step("short")
    progress.tick()
    progress.done("done")
    *shown, rest = out.getvalue().removeprefix("\r").split("\r")
    assert [line.strip() for line in (*shown, rest)] == [
        "installing: a long step (0:00)",
        "installing: short (0:00)",
        "installing: done (0:00)",
    ]
    assert len(shown[1]) == len(shown[0])
    assert rest.endswith("\n")


def test_the_output_is_logged_whole_and_its_end_kept(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys\nfor i in range(100): print('line', i)\nsys.exit(5)"]
    outcome = run_logged(command, tmp_path / "log", Progress(io.StringIO(), "x"), os.environ, tail=3)
    assert outcome == Outcome(5, ("line 97", "line 98", "line 99"))
    assert len((tmp_path / "log").read_text().splitlines()) == 100


def test_an_interrupt_ends_the_installer_too(tmp_path: Path) -> None:
    pids: list[int] = []

    class Interrupting(Progress):
        def tick(self) -> None:
            pids.append(int((tmp_path / "pid").read_text()))
            raise KeyboardInterrupt

    program = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); print('on', flush=True)"
    command = [sys.executable, "-c", f"{program}; time.sleep(600)"]
    with pytest.raises(KeyboardInterrupt):
        run_logged(command, tmp_path / "log", Interrupting(io.StringIO(), "x"), os.environ, tail=3)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_the_module_runs_as_the_makefile_runs_it() -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "serve_app.cli.bootstrap", "no-such-verb"]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert result.returncode == 2
