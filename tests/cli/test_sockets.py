"""What listens while the service runs is what docs/security.md says, and nothing else."""

from __future__ import annotations

import re
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from tests.cli.processes import DISCO, ROOT, SERVE, started
from tests.support.local_service import CONFIGS

#: | `process` | interfaces | port | what it is | who gets in |
ROW = re.compile(r"\| `(?P<process>[^`]+)` \| (?P<interfaces>[^|]+) \| (?P<port>[^|]+) \| [^|]+ \| [^|]+ \|")
ANY, CONFIGURED = "any", "configured"

#: The table's heading, the command, its environment.
MODES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "`disco up`": (DISCO, {}),
    "`serve run`": (SERVE, {}),
    "`serve run` with HAProxy": (
        SERVE,
        {
            "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
            "RAY_SERVE_ENABLE_HA_PROXY": "1",
            "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0",
        },
    ),
}


@dataclass(frozen=True)
class Socket:
    """``port``: a number, "any" or "configured"."""

    interfaces: str
    port: str


Table = Mapping[str, Counter[Socket]]


def documented(text: str, heading: str) -> Table:
    """By process, the rows of the table under ``heading``."""
    table: dict[str, Counter[Socket]] = {}
    section = text.partition(f"### {heading}\n")[2].partition("\n#")[0]
    for row in ROW.finditer(section):
        process, interfaces, port = (row[name].strip() for name in ("process", "interfaces", "port"))
        table.setdefault(process, Counter())[Socket(interfaces, port)] += 1
    return table


def test_a_difference_is_seen_unless_another_ray_explains_it() -> None:
    table = {"a": Counter({Socket("all", ANY): 1, Socket("loopback", "80"): 1})}

    def seen(*sockets: Socket, taken: frozenset[int] = frozenset(), name: str = "a") -> bool:
        return bool(differences(table, {(name, 1): Counter(sockets)}, set(taken)))

    everywhere, loopback, preferred = Socket("all", ANY), Socket("loopback", ANY), Socket("loopback", "80")
    assert not seen(everywhere, preferred)
    for sockets in ((everywhere,), (preferred,), (everywhere, everywhere, preferred), (everywhere, loopback)):
        assert seen(*sockets)
    assert seen(everywhere, preferred, name="b")
    for sockets in ((everywhere,), (everywhere, loopback), (everywhere, preferred)):
        assert not seen(*sockets, taken=frozenset({80}))
    assert seen(preferred, taken=frozenset({80}))


def test_the_table_is_read() -> None:
    row = "| `a` | all | any | x | y |\n"
    text = f"### one\n\n{row}{row}\n### two\n| `b` | loopback | 80 | x | y |\n"
    assert documented(text, "one") == {"a": Counter({Socket("all", ANY): 2})}
    assert documented(text, "two") == {"b": Counter({Socket("loopback", "80"): 1})}


@pytest.mark.ray
@pytest.mark.alone
@pytest.mark.timeout(400)
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere Ray keeps to loopback")
@pytest.mark.parametrize("mode", MODES)
def test_what_listens_is_what_the_documentation_says(mode: str, folder: Path) -> None:
    command, switches = MODES[mode]
    table = documented((ROOT / "docs/security.md").read_text("utf-8"), mode)
    fixed = {int(row.port) for rows in table.values() for row in rows if row.port.isdecimal()}
    taken = {port for port in fixed if is_taken(port)}
    if any(int(row.port) in taken for row in table.get("haproxy", ()) if row.port.isdecimal()):
        pytest.skip("another HAProxy runs here")
    port = free_port()
    environment = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TMPDIR": str(folder),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }
    action = "up" if command is DISCO else "run"
    with started(
        "-c", command, action, str(configuration(folder, port)), environment=environment | switches
    ) as process:
        until(lambda: process.poll() is not None or is_ready(port), 240)
        assert process.poll() is None, process.stdout and process.stdout.read()
        problems: list[str] = []

        def agree() -> bool:
            found = found_below(process.pid, fixed, port)
            ours = {row.port for sockets in found.values() for row in sockets}
            taken.update(number for number in fixed if str(number) not in ours and is_taken(number))
            problems[:] = differences(table, found, taken)
            return not problems

        until(agree, 30, strict=False)
        process.send_signal(signal.SIGINT)
        process.wait(timeout=90)
    assert problems == []


def differences(table: Table, found: Mapping[tuple[str, int], Counter[Socket]], taken: set[int]) -> list[str]:
    """Where another Ray has or had a port that Ray prefers (``taken``), this one may have it, any other, or none."""
    problems = [f"{name}: does not listen" for name, rows in table.items() if without(rows, taken) - _all(found, name)]
    for (name, _), sockets in found.items():
        rows = table.get(name, Counter())
        preferred = rows - without(rows, taken)
        excused = preferred + Counter(Socket(row.interfaces, ANY) for row in preferred.elements())
        surplus, missing = sockets - without(rows, taken) - excused, without(rows, taken) - sockets
        problems += [f"{name}: {word} {dict(some)}" for word, some in (("also", surplus), ("not", missing)) if some]
    return problems


def _all(found: Mapping[tuple[str, int], Counter[Socket]], name: str) -> Counter[Socket]:
    return sum((sockets for (owner, _), sockets in found.items() if owner == name), Counter())


def without(sockets: Counter[Socket], ports: set[int]) -> Counter[Socket]:
    return Counter({s: count for s, count in sockets.items() if not s.port.isdecimal() or int(s.port) not in ports})


def found_below(root: int, fixed: set[int], configured: int) -> Mapping[tuple[str, int], Counter[Socket]]:
    """By name and id of each process of the service that listens."""
    found: dict[tuple[str, int], Counter[Socket]] = {}
    for owner, address, port in listening(psutil.Process(root)):
        word = CONFIGURED if port == configured else str(port) if port in fixed else ANY
        found.setdefault((name_of(owner), owner.pid), Counter())[Socket(interfaces_of(address), word)] += 1
    return found


def listening(service: psutil.Process) -> Iterator[tuple[psutil.Process, str, int]]:
    """Each socket that others can reach by network, of every process of the service."""
    for process in [service, *service.children(recursive=True)]:
        try:
            connections = process.net_connections("inet")
        except psutil.NoSuchProcess:
            continue
        for connection in connections:
            if connection.status == psutil.CONN_LISTEN or connection.type == socket.SOCK_DGRAM:
                yield process, connection.laddr.ip, connection.laddr.port


def name_of(process: psutil.Process) -> str:
    """As `ps` shows it, in one word."""
    words = process.cmdline()
    if words[0].startswith("ray::"):
        name = words[0].removeprefix("ray::").partition(".")[0].rpartition(":")[2]
        return "endpoint-*" if name.startswith("endpoint-") else name
    if "serve_app.cli.up" in words:
        return "serve_app.cli.up"
    if SERVE in words:
        return "serve"
    script = next((word for word in words if word.endswith(".py")), words[0])
    return Path(script).name


def interfaces_of(address: str) -> str:
    if address in {"::", "0.0.0.0"}:
        return "all"
    return "loopback" if address in {"127.0.0.1", "::1"} else "the node's"


def configuration(folder: Path, port: int) -> Path:
    path = folder / "simulated.yaml"
    path.write_text((CONFIGS / "simulated.yaml").read_text("utf-8").replace("port: 8000", f"port: {port}"), "utf-8")
    return path


def is_ready(port: int) -> bool:
    try:
        endpoints = httpx.get(f"http://127.0.0.1:{port}/ready", trust_env=False).json()["endpoints"]
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return False
    return all(endpoint["ready"] for endpoint in endpoints.values())


def is_taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(condition: Callable[[], bool], patience: float, *, strict: bool = True) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            assert not strict, "the condition never came true"
            return
        time.sleep(0.2)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Ray's sockets need a short path."""
    path = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)
