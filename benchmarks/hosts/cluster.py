"""A Ray cluster over hosts, with the application on it."""

from __future__ import annotations

import secrets
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
import yaml

from benchmarks.hosts.machine import SCRATCH, Host, Network, network, until
from serve_app.cli import ready
from serve_app.cli.launch import OBJECT_STORE

PORT: Final = 6379
ENVIRONMENT: Final = Path(__file__).resolve().parents[2] / "k8s" / "base" / "ray.env"
#: Seconds.
READY_LIMIT: Final = 150.0

CLIENT: Final = "client"


@dataclass(frozen=True, slots=True)
class Node:
    """What ``ray start`` is told of a host. ``cpus``: bookkeeping, as everywhere in Ray."""

    name: str
    labels: Mapping[str, str]
    cpus: int = 4
    gpus: int = 0


#: The first is the head, which, as in k8s/, serves nobody.
NODES: Final = (
    Node("head", {"tier": "head"}, cpus=0),
    Node("router1", {"tier": "router"}),
    Node("router2", {"tier": "router"}),
    Node("cloud", {"tier": "cloud"}, gpus=1),
    Node("arm1", {"tier": "device", "cpu-arch": "arm64"}),
    Node("arm2", {"tier": "device", "cpu-arch": "arm64"}),
)


def node_environment(shared: Path = ENVIRONMENT) -> dict[str, str]:
    """What every node of a cluster has by k8s/, and what KubeRay adds to it: Ray's authentication.

    HAProxy's files go where each host has its own.
    """
    lines = (line for line in shared.read_text("utf-8").splitlines() if line and not line.startswith("#"))
    return dict(line.split("=", 1) for line in lines) | {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(SCRATCH / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(SCRATCH / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(SCRATCH),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(SCRATCH / "server-state"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(SCRATCH / "metrics.sock"),
    }


@dataclass
class Cluster:
    """``environment``: of all its nodes and of drivers on them. ``deployed``: the latest configuration."""

    network: Network
    environment: Mapping[str, str] = field(default_factory=node_environment)
    deployed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def head(self) -> Host:
        return self.network[NODES[0].name]

    @property
    def client(self) -> Host:
        return self.network[CLIENT]

    @property
    def url(self) -> str:
        """Of the first router's HAProxy, which balances over both routers."""
        return f"http://{self.network['router1'].address}:8000"

    def start(self, node: Node) -> None:
        """Start Ray on the host of that name; a worker that ends is started again, as a kubelet would."""
        host = self.network[node.name]
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
        ray += ["--node-ip-address", host.address, "--num-cpus", str(node.cpus), "--num-gpus", str(node.gpus)]
        ray += ["--object-store-memory", str(OBJECT_STORE), "--include-log-monitor", "false"]
        ray += ["--labels", ",".join(f"{label}={value}" for label, value in node.labels.items())]
        if host is self.head:
            ray += ["--head", "--port", str(PORT), "--include-dashboard", "false", "--temp-dir", str(SCRATCH / "ray")]
            host.start(ray, self.environment)
        else:
            line = shlex.join([*ray, "--address", f"{self.head.address}:{PORT}"])
            host.start(["bash", "-c", f"while true; do {line}; sleep 1; done"], self.environment)

    def power_on(self, node: Node) -> None:
        self.network.power_on(node.name)
        self.start(node)

    def deploy(self, document: Mapping[str, Any]) -> None:
        command = [sys.executable, "-m", "benchmarks.hosts.deploy", f"{self.head.address}:{PORT}"]
        text = yaml.safe_dump(dict(document))
        done = self.head.run(command, self.environment, text=text, limit=120)
        if done.returncode:
            raise RuntimeError(f"the configuration was not taken: {done.stderr[-2000:]}")
        self.deployed = document

    def readiness(self) -> ready.Readiness | None:
        """As seen from the client's host."""

        async def ask() -> ready.Readiness | None:
            return ready.ask(self.url, timeout=5.0)

        return self.client.here(ask)

    def wait_ready(self) -> None:
        """Until every endpoint is."""
        until(lambda: (state := self.readiness()) is not None and state.ready and not state.waiting, READY_LIMIT, 0.5)

    def replicas(self, name: str, host: str | None = None) -> list[psutil.Process]:
        """Processes of the deployment's replicas, on one host or on all."""
        hosts = [self.network[host]] if host else list(self.network.hosts.values())
        return [process for each in hosts for process in each.processes() if _is_replica(process, name)]


def _is_replica(process: psutil.Process, name: str) -> bool:
    try:
        return " ".join(process.cmdline()).startswith(f"ray::ServeReplica:disco:{name}")
    except psutil.Error:
        return False


@contextmanager
def cluster(nodes: Sequence[Node] = NODES) -> Iterator[Cluster]:
    """Ray on each of ``nodes``, and a client's host beside them."""
    with network([*(node.name for node in nodes), CLIENT]) as made:
        started = Cluster(made)
        started.start(nodes[0])
        until(lambda: _listens(started.head, PORT), 60)
        for node in nodes[1:]:
            started.start(node)
        yield started


def _listens(host: Host, port: int) -> bool:
    log = Path(f"/proc/{host.init.pid}/net/tcp")
    tables = log.read_text() + log.with_name("tcp6").read_text()
    return any(f":{port:04X} " in line and " 0A " in line for line in tables.splitlines())
