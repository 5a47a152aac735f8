"""A server as a group of processes that this program starts, measures and ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

_MARK: Final = "DISCO_BENCHMARK_RUN"

#: Seconds. Ray's own start-up takes about ten; a clean end three, or 25 at the launcher's limit.
START_LIMIT: Final = 120.0
END_LIMIT: Final = 35.0

#: The first that is part of a process's command line names its role.
_ROLES: Final = (
    ("DiscoRouter", "router"),
    (":endpoint-", "endpoint"),
    ("HAProxyManager", "control"),
    ("haproxy", "proxy"),
    ("ProxyActor", "proxy"),
    ("benchmarks.reference", "reference"),
)


class ServerFailed(Exception):
    """It did not start, or did not end, within its limit."""


def python(module: str, *arguments: str) -> list[str]:
    """The command that runs a module as this program's own Python runs it."""
    return [sys.executable, "-m", module, *arguments]


class Server:
    """A command in a process group of its own; every descendant bears its mark."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._mark = uuid.uuid4().hex
        self._log = log
        with log.open("wb") as output:
            self._root = subprocess.Popen(
                command,
                env={**os.environ, **environment, _MARK: self._mark},
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def wait_until(self, ready: Callable[[], bool], limit: float = START_LIMIT) -> None:
        give_up = time.monotonic() + limit
        while not ready():
            if self._root.poll() is not None or time.monotonic() > give_up:
                tail = self._log.read_text("utf-8", "replace")[-2000:]
                raise ServerFailed(f"the server did not start; its last words:\n{tail}")
            time.sleep(0.1)

    def processes(self) -> list[psutil.Process]:
        """All that still live, adopted ones included: Ray's and HAProxy's daemons may lose their parents."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(_MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def cpu(self) -> CpuReading:
        reading: dict[int, tuple[str, float]] = {}
        for process in self.processes():
            try:
                times = process.cpu_times()
                reading[process.pid] = (_role(process.cmdline()), times.user + times.system)
            except psutil.NoSuchProcess:
                continue
        return CpuReading(reading)

    def memory(self) -> dict[str, int]:
        """Bytes that no other process shares, by role."""
        taken: dict[str, int] = {}
        for process in self.processes():
            try:
                role = _role(process.cmdline())
                taken[role] = taken.get(role, 0) + process.memory_full_info().uss
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return taken

    def end(self) -> None:
        """Ask the server to shut down; end what is left of it after the limit, and say so by ``ServerFailed``."""
        if self._root.poll() is None:
            self._root.send_signal(signal.SIGTERM)
        try:
            self._root.wait(END_LIMIT)
        except subprocess.TimeoutExpired:
            self._root.kill()
            self._root.wait()
        _, alive = psutil.wait_procs(self.processes(), timeout=5.0)
        for process in alive:
            process.kill()
        if alive:
            raise ServerFailed(f"{len(alive)} processes of the server did not end and were killed")


class CpuReading:
    """CPU seconds of each process since its start."""

    def __init__(self, seconds: Mapping[int, tuple[str, float]]) -> None:
        self._seconds = seconds

    def since(self, earlier: CpuReading) -> dict[str, float]:
        """CPU seconds by role; a process that is new counts from its start, one that is gone not at all."""
        spent: dict[str, float] = {}
        for pid, (role, seconds) in self._seconds.items():
            before = earlier._seconds.get(pid, (role, 0.0))[1]
            spent[role] = spent.get(role, 0.0) + seconds - before
        return spent


def _role(command: Sequence[str]) -> str:
    line = " ".join(command)
    return next((role for part, role in _ROLES if part in line), "control")
