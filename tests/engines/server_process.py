"""Somebody else's server as a process of its own, on this machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Stands for the port in a command.
PORT = "PORT"

#: Settings for a busy machine: a start that waits is over when the model has written its first token.
PATIENT: dict[str, Any] = {
    "warm_up": True,
    "connect_seconds": 60.0,
    "first_token_seconds": 60.0,
    "idle_seconds": 60.0,
}

#: Seconds. A large runtime takes most of a minute to import on a busy machine.
LONGEST_START = 300.0


@dataclass(frozen=True)
class ServerProcess:
    root: str
    pid: int
    log: Path

    @property
    def url(self) -> str:
        return f"{self.root}/v1"


@contextmanager
def serving(
    command: Sequence[str], log: Path, ready: str, environment: Mapping[str, str] | None = None
) -> Iterator[ServerProcess]:
    """``command`` on a free port, from when it answers GET ``ready``; its process group ends with the block."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    words = [port if word == PORT else word for word in command]
    # What a server says is to be in its log when it says it.
    spoken = {**(os.environ if environment is None else environment), "PYTHONUNBUFFERED": "1"}
    with (
        log.open("wb") as out,
        subprocess.Popen(words, stdout=out, stderr=out, env=spoken, start_new_session=True) as process,
    ):
        root = f"http://127.0.0.1:{port}"
        try:
            deadline = time.monotonic() + LONGEST_START
            while not answers(f"{root}/{ready}"):
                assert process.poll() is None, log.read_text("utf-8", "replace")[-2000:]
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield ServerProcess(root, process.pid, log)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except OSError:
        return False
