"""Two processes: signals reach the outer one alone, and the inner one ends with it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest

from serve_app.cli import supervisor
from serve_app.cli.exits import FAILED
from serve_app.cli.supervisor import DIRECTORIES, directory_prefix, supervise
from tests.cli.processes import DISCO, ROOT, said, started, wait_until_ready

Send = Callable[[int, int], None]

SUPERVISOR = """
import sys
from serve_app.cli.supervisor import supervise
print("supervisor", flush=True)
sys.exit(supervise([sys.executable, "-c", sys.argv[1]]))
"""
#: Says who it is, waits until its standard input ends, then for SIGUSR1, and exits with 7.
SERVICE = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
print(os.getpid(), os.getsid(0), flush=True)
while os.read(0, 1):
    pass
print("asked to stop", flush=True)
signal.sigwait([signal.SIGUSR1])
sys.exit(7)
"""


#: The simulated phone takes many seconds for this answer.
LONG_ANSWER = {
    "model": "disco",
    "stream": True,
    "max_tokens": 2000,
    "disco": {"pin": "device_only"},
    "messages": [{"role": "user", "content": "bye"}],
}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("send", [os.kill, os.killpg])
def test_any_signal_however_often_asks_the_service_once_and_its_exit_code_is_passed_on(
    number: signal.Signals, send: Send
) -> None:
    with started("-c", SUPERVISOR, SERVICE) as process:
        assert said(process) == "supervisor"
        service, session = map(int, said(process).split())
        assert session == service
        send(process.pid, number)
        assert said(process) == "asked to stop"
        send(process.pid, number)
        os.kill(service, signal.SIGUSR1)
        assert process.wait(timeout=30) == 7


def test_a_supervisor_that_is_killed_takes_the_service_along() -> None:
    with started("-c", SUPERVISOR, SERVICE) as process:
        said(process)
        service = int(said(process).split()[0])
        process.kill()
        assert said(process) == "asked to stop"
        os.kill(service, signal.SIGUSR1)
        assert said(process) == "", "nobody is left who could write"


def test_a_service_without_a_supervisor_leaves_nothing_of_a_start_that_was_broken_off() -> None:
    script = """
import os, subprocess, sys
from serve_app.cli import up
def service(_):
    print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid, flush=True)
    while os.read(0, 1):
        pass
    return 0
up._main = service
sys.exit(up.main([]))
"""
    with started("-c", SUPERVISOR, script) as process:
        assert said(process) == "supervisor"
        left = int(said(process))
        process.kill()
        assert gone(left)


def test_nothing_is_left_of_a_service_that_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "DIRECTORIES", tmp_path)
    other = tmp_path / "disco-logs-1"
    other.mkdir()
    script = f"""
import os, pathlib, subprocess, sys
pathlib.Path({str(tmp_path)!r}, f"disco-{{os.getpid()}}-x", "session").mkdir(parents=True)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path({str(tmp_path)!r}, "child").write_text(str(child.pid))
os.kill(os.getpid(), 9)
"""
    before = signal.getsignal(signal.SIGTERM)
    assert supervise([sys.executable, "-c", script]) == FAILED
    assert sorted(tmp_path.iterdir()) == [tmp_path / "child", other]
    assert gone(int((tmp_path / "child").read_text()))
    assert signal.getsignal(signal.SIGTERM) is before


def gone(*processes: int) -> bool:
    """Whether they end soon. Nobody may be there to take notice of an orphan's end."""
    deadline = time.monotonic() + 30
    while any(psutil.pid_exists(p) and psutil.Process(p).status() != psutil.STATUS_ZOMBIE for p in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_the_end_of_standard_input_wakes_a_main_thread_that_waits() -> None:
    script = """
import threading
from serve_app.cli.signals import Stopped, stop_by_signal, stop_with_parent
try:
    with stop_by_signal():
        stop_with_parent()
        threading.Event().wait()
except Stopped:
    print("stopped")
"""
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, cwd=ROOT, input="x", capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout == "stopped\n"


@pytest.mark.ray
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("send", "number", "code"), [(os.killpg, signal.SIGTERM, 0), (os.kill, signal.SIGKILL, -9)])
def test_the_service_ends_its_streams_and_leaves_neither_a_process_nor_a_directory(
    send: Send, number: signal.Signals, code: int, unused_port: int
) -> None:
    with started("-c", DISCO, "up", "simulated", "--port", str(unused_port)) as process:
        wait_until_ready(process)
        (service,) = psutil.Process(process.pid).children()
        processes = [service.pid, *(child.pid for child in service.children(recursive=True))]
        assert len(processes) > 5
        address = f"http://127.0.0.1:{unused_port}/v1/chat/completions"
        (directory,) = DIRECTORIES.glob(f"{directory_prefix(service.pid)}*")
        with httpx.stream("POST", address, json=LONG_ANSWER, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            assert directory.stat().st_mode & 0o777 == 0o700, "whatever Ray does to its own"
            send(process.pid, number)
            *_, last = (line for line in lines if line)
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "draining"
        assert process.wait(timeout=60) == code
        assert gone(*processes)
        assert not directory.exists()


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
