"""From a fresh clone to a running `disco`, by the standard library alone: ``python3 -m serve_app.cli.bootstrap``.

    serve [ARGS]      install what the default needs, then `disco up ARGS`
    demo [ARGS]       the same without a model or a compiler: `disco up simulated ARGS`
    install EXTRA...  install the package with these extras, and stop

Everything goes into `.venv` beside this package; a stamp there says what was installed, and from which pyproject.toml.
Like preflight, this module must be readable by Python 3.9.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from serve_app.cli.installer import Outcome, Progress, run_logged
from serve_app.cli.preflight import NEWEST, OLDEST, Finding, examine

FAILED = 1
USAGE = 2
UNFIT = 3
INTERRUPTED = 130

#: Lines of the installer's output that are shown when it fails.
TAIL = 25

Install = Callable[[Sequence[str], Path, Progress], Outcome]


class Task(NamedTuple):
    """``command``: arguments of `disco` to go on with; None stops after the installation."""

    extras: frozenset[str]
    command: tuple[str, ...] | None


def parse(arguments: Sequence[str]) -> Task | None:
    verb, rest = (arguments[0], tuple(arguments[1:])) if arguments else ("", ())
    if verb == "serve":
        return Task(frozenset({"llama"}), ("up", *rest))
    if verb == "demo":
        return Task(frozenset(), ("up", "simulated", *rest))
    if verb == "install" and rest:
        return Task(frozenset(rest), None)
    return None


def port_of(arguments: Sequence[str]) -> int:
    """The port `disco up` will be told. It judges the value itself; what is no port here is the default's turn."""
    for position, word in enumerate(arguments):
        text = word[len("--port=") :] if word.startswith("--port=") else ""
        if word == "--port":
            text = "".join(arguments[position + 1 : position + 2])
        if text.isdecimal() and 0 < int(text) < 65536:
            return int(text)
    return 8000


class Environment:
    """The project's own virtual environment and the stamp that says what is in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.directory = root / ".venv"
        self.python = self.directory / "bin" / "python"
        self.disco = self.directory / "bin" / "disco"
        self.log = self.directory / "install.log"
        self._stamp = self.directory / "disco-installed.json"

    def is_current(self, extras: Iterable[str]) -> bool:
        stamp = self._read()
        same = stamp.get("pyproject") == self._fingerprint() and stamp.get("root") == str(self.root)
        return same and self.installed().issuperset(extras) and self.python.exists() and self.disco.exists()

    def installed(self) -> frozenset[str]:
        """Extras that were installed, from whatever pyproject.toml."""
        return frozenset(self._read().get("extras", ()))

    def forget(self) -> None:
        """An interrupted installation must not look finished."""
        if self._stamp.exists():
            self._stamp.unlink()

    def remember(self, extras: Iterable[str]) -> None:
        stamp = {"pyproject": self._fingerprint(), "root": str(self.root), "extras": sorted(extras)}
        self._stamp.write_text(json.dumps(stamp), "utf-8")

    def is_usable(self) -> bool:
        """Whether its Python still runs: a system upgrade may have taken it away."""
        if not self.python.exists():
            return False
        command = [str(self.python), "-c", "import pip, sys; sys.exit(sys.version_info[:2] < (3, 11))"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603

    def is_foreign(self) -> bool:
        """Something else lies there, which is not ours to overwrite."""
        return self.directory.exists() and not (self.directory / "pyvenv.cfg").is_file()

    def _fingerprint(self) -> str:
        return sha256((self.root / "pyproject.toml").read_bytes()).hexdigest()

    def _read(self) -> dict[str, Any]:
        try:
            stamp = json.loads(self._stamp.read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return stamp if isinstance(stamp, dict) else {}


def bring_up_to_date(environment: Environment, extras: frozenset[str], out: TextIO, install: Install) -> int:
    """Create the environment where need be and install into it; 0, or an exit code after saying what went wrong."""
    if environment.is_foreign():
        out.write(f"{environment.directory} exists, but is no virtual environment; move it away\n")
        return UNFIT
    wanted = extras | environment.installed()
    environment.forget()
    if not environment.is_usable():
        out.write(f"  creating {environment.directory}\n")
        out.flush()
        made = subprocess.run(  # noqa: S603
            [sys.executable, "-m", "venv", "--clear", str(environment.directory)],
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode != 0:
            out.write(f"creating the environment failed:\n{made.stdout}{made.stderr}")
            return FAILED
    target = f"{environment.root}[{','.join(sorted(wanted))}]" if wanted else str(environment.root)
    command = [str(environment.python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    progress = Progress(out, "installing")
    outcome = install([*command, "--progress-bar", "off", "--editable", target], environment.log, progress)
    if outcome.code != 0:
        progress.done("failed")
        out.write("".join(f"    {line}\n" for line in outcome.tail))
        out.write(f"the installation failed (exit code {outcome.code}); all of its output: {environment.log}\n")
        out.write("Run the same command again to try once more; what was downloaded is kept.\n")
        return FAILED
    environment.remember(wanted)
    progress.done("done")
    return 0


def report(findings: Iterable[Finding], out: TextIO) -> bool:
    """Say what was found; whether all is well."""
    well = True
    for finding in findings:
        well = well and finding.ok
        out.write(f"  {'ok  ' if finding.ok else 'MISSING'} {finding.name}: {finding.detail}\n")
        if not finding.ok:
            out.write(f"          remedy: {finding.remedy}\n")
    out.flush()
    return well


def newer_python(which: Callable[[str], str | None] = shutil.which) -> str | None:
    """Another Python on the PATH that fits."""
    for minor in range(NEWEST[1], OLDEST[1] - 1, -1):
        path = which(f"python3.{minor}")
        if path is not None:
            return path
    return None


def run(task: Task, environment: Environment, out: TextIO, install: Install) -> int:
    """Preflight, then the installation where it is due. 0 when `disco` can start."""
    pending = not environment.is_current(task.extras)
    port = None if task.command is None else port_of(task.command)
    out.write("Looking at this machine\n")
    findings = examine(str(environment.root), "llama" in task.extras, pending, "127.0.0.1", port)
    if not report(findings, out):
        return UNFIT
    return bring_up_to_date(environment, task.extras, out, install) if pending else 0


def _install(command: Sequence[str], log: Path, progress: Progress) -> Outcome:
    return run_logged(command, log, progress, {**os.environ, "PYTHONUNBUFFERED": "1"}, TAIL)


def main(arguments: Sequence[str]) -> int:
    task = parse(arguments)
    if task is None:
        sys.stderr.write(__doc__ or "")
        return USAGE
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        other = newer_python()
        if other is not None:
            os.execv(other, [other, "-m", "serve_app.cli.bootstrap", *arguments])  # noqa: S606
    environment = Environment(Path(__file__).resolve().parents[2])
    try:
        code = run(task, environment, sys.stdout, _install)
    except KeyboardInterrupt:
        sys.stdout.write("\nstopped; nothing was started\n")
        return INTERRUPTED
    if code == 0 and task.command is not None:
        sys.stdout.flush()
        os.execv(environment.disco, [str(environment.disco), *task.command])  # noqa: S606
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
