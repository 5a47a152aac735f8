"""Hosts: each has its own network, processes, mounts and name, and dies as a whole when it is switched off.

What is started here runs in sessions of its own: Ctrl-C reaches this program only, which then ends the rest.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Final, TypeVar

import psutil

from benchmarks.hosts.line import Condition
from benchmarks.hosts.switch import network_of
from serve_app.cli.supervisor import DIRECTORIES

#: Where every host has a directory of its own; outside, each is a folder of its own. Short: Ray's sockets lie in it.
SCRATCH: Final = DIRECTORIES / "disco-host"
NETWORK: Final = "10.77.0"
_ROOT: Final = Path(__file__).resolve().parents[2]

#: The first process of a host. It reaps what others leave, and ends with its stdin, that is with this program.
_INIT: Final = """
set -e
hostname "$1"
mount --bind "$2" "$3"
mount -t tmpfs -o size=1g tmpfs /dev/shm
echo up
read -r _ || true
"""

_UNSHARE: Final = ("unshare", "--net", "--pid", "--mount", "--uts", "--fork", "--kill-child", "--mount-proc")

T = TypeVar("T")


def why_not() -> str | None:
    """What this machine lacks for hosts; None if nothing."""
    if sys.platform != "linux":
        return "hosts are Linux namespaces"
    if os.geteuid() != 0:
        return "hosts are namespaces, which only root may make"
    for command in ("unshare", "nsenter", "ip"):
        if shutil.which(command) is None:
            return f"the command {command} is missing (packages util-linux and iproute2)"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "there is no /dev/net/tun"
    trial = subprocess.run([*_UNSHARE, "true"], capture_output=True, check=False)
    return None if trial.returncode == 0 else f"unshare: {trial.stderr.decode(errors='replace').strip()}"


class Host:
    """``init``: its first process, as seen from outside. ``folder``: its SCRATCH, as seen from outside."""

    def __init__(self, name: str, address: str, folder: Path) -> None:
        self.name = name
        self.address = address
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self._started: list[subprocess.Popen[bytes]] = []
        with (folder / "init.log").open("wb") as log:
            self._holder = subprocess.Popen(
                [*_UNSHARE, "bash", "-c", _INIT, "init", name, str(folder), str(SCRATCH)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "up\n":
            raise RuntimeError(f"host {name} did not come up")
        (self.init,) = psutil.Process(self._holder.pid).children()

    def command(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> list[str]:
        """``command`` as it runs on this host, in the project's folder."""
        variables = [f"{name}={value}" for name, value in (environment or {}).items()]
        enter = ["nsenter", "-t", str(self.init.pid), "-n", "-p", "-m", "-u", f"--wdns={_ROOT}"]
        return [*enter, "env", *variables, *command]

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        log: str = "commands.log",
        errors: str | None = None,
    ) -> subprocess.Popen[bytes]:
        """In the background; its output goes to ``log`` in the host's folder, its complaints too, or to ``errors``."""
        with (self.folder / log).open("ab") as output, (self.folder / (errors or log)).open("ab") as complaints:
            started = subprocess.Popen(
                self.command(command, environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=complaints,
                start_new_session=True,
            )
        self._started.append(started)
        return started

    def run(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, *, text: str = "", limit: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """``text`` goes to its stdin. Raises ``subprocess.TimeoutExpired`` after ``limit`` seconds."""
        return subprocess.run(
            self.command(command, environment), input=text, capture_output=True, text=True, timeout=limit, check=False
        )

    def soon(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Run ``work`` in a thread of this process, but on this host's network."""
        result: Future[T] = Future()

        def body() -> None:
            try:
                with network_of(self.init.pid):
                    result.set_result(asyncio.run(work()))
            except BaseException as failure:  # noqa: BLE001 - raised again where the result is asked for
                result.set_exception(failure)

        threading.Thread(target=body, name=f"on {self.name}", daemon=True).start()
        return result

    def here(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The same, waited for."""
        return self.soon(work).result()

    def processes(self) -> list[psutil.Process]:
        """All of them, found by the namespace of their numbers."""
        try:
            mine = os.readlink(f"/proc/{self.init.pid}/ns/pid")
        except OSError:
            return []
        found = []
        for process in psutil.process_iter():
            with suppress(OSError, psutil.Error):
                if os.readlink(f"/proc/{process.pid}/ns/pid") == mine:
                    found.append(process)
        return found

    def switch_off(self) -> None:
        """Every process of it is gone at once, without a word to anybody if its line was cut before."""
        with suppress(psutil.NoSuchProcess):
            self.init.kill()
        self._holder.wait(30)
        for started in self._started:
            started.wait(30)
        _close(self._holder)


class Network:
    """The hosts and the switch between them."""

    def __init__(self, names: Sequence[str], folder: Path) -> None:
        self._folder = folder
        self._addresses = {name: f"{NETWORK}.{number}" for number, name in enumerate(names, start=1)}
        self.hosts: dict[str, Host] = {}
        SCRATCH.mkdir(exist_ok=True)
        self._switch = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.hosts.switch"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=_ROOT,
            start_new_session=True,
        )
        try:
            self._confirm()
            for name in names:
                self.power_on(name)
        except BaseException:
            self.close()
            raise

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def set(self, name: str, condition: Condition) -> None:
        """In force when this returns."""
        self._command({"host": name} | asdict(condition))

    def power_on(self, name: str) -> Host:
        """A new machine with that name and address, on a line without delay or loss."""
        host = Host(name, self._addresses[name], self._folder / name)
        self.hosts[name] = host
        self._command({"plug": f"{name}={host.init.pid}={host.address}"})
        return host

    def power_off(self, name: str) -> None:
        """Like pulling the plug: the others hear nothing, not even a closed connection."""
        self.set(name, Condition(cut=True))
        self.hosts[name].switch_off()

    def close(self) -> None:
        for host in self.hosts.values():
            host.switch_off()
        _pipe(self._switch.stdin).close()
        try:
            self._switch.wait(10)
        except subprocess.TimeoutExpired:
            self._switch.kill()
            self._switch.wait()
        _close(self._switch)

    def _command(self, command: Mapping[str, Any]) -> None:
        _pipe(self._switch.stdin).write(json.dumps(command) + "\n")
        _pipe(self._switch.stdin).flush()
        self._confirm()

    def _confirm(self) -> None:
        if _pipe(self._switch.stdout).readline() != "ok\n":
            raise RuntimeError("the switch ended")


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def _close(process: subprocess.Popen[str]) -> None:
    for pipe in (process.stdin, process.stdout):
        _pipe(pipe).close()


@contextmanager
def network(names: Sequence[str]) -> Iterator[Network]:
    """Everything of it is gone when the block ends, or this program does, however that comes."""
    folder = Path(tempfile.mkdtemp(prefix="hosts-"))
    try:
        made = Network(names, folder)
        try:
            yield made
        finally:
            made.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def until(condition: Callable[[], T], limit: float = 60.0, period: float = 0.2) -> T:
    """The first value of ``condition()`` that is true. Raises TimeoutError after ``limit`` seconds."""
    give_up = time.monotonic() + limit
    while not (value := condition()):
        if time.monotonic() > give_up:
            raise TimeoutError(f"not within {limit:g} s")
        time.sleep(period)
    return value
