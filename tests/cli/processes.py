"""`disco`, `serve` and their parts as processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: As the installed commands do.
DISCO = "from serve_app.cli.main import app; app()"
SERVE = "from ray.serve.scripts import cli; cli()"


@contextmanager
def started(*command: str, environment: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """A process group of its own, as a shell makes one, in which Ctrl-C is heard; Ray's switches as a user has them."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env=inherited | {"PYTHONPATH": str(ROOT)} | dict(environment or {}),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=30)


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def wait_until_ready(process: subprocess.Popen[str]) -> None:
    lines = ["it said:"]
    while not lines[-1].startswith("ready after "):
        lines.append(said(process))
        assert lines[-1], "\n".join(lines)
