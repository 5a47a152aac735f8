"""The whole stack in its own process, until a signal ends it.

    python -m benchmarks.stack CONFIGURATION

The mode is that of the process's environment, which ``mode_environment`` makes and which has to be set from the start.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import yaml

from serve_app.cli.configfile import IMPORT_PATH, ROUTER, load
from serve_app.cli.launch import ENVIRONMENT, LaunchFailed, running
from serve_app.cli.signals import Stopped, stop_by_signal
from serve_app.settings import AppSettings, LiveSettings

_HOST = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago. Below the range from which Ray and the kernel take theirs at any time."""
    probes: list[socket.socket] = []
    try:
        while len(probes) < count:
            probe = socket.socket()
            try:
                probe.bind((_HOST, random.randrange(10_000, 30_000)))
            except OSError:
                probe.close()
            else:
                probes.append(probe)
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def mode_environment(directory: Path, *, haproxy: bool) -> dict[str, str]:
    """Laptop mode, or the same with HAProxy in front; nothing in it is shared with another Ray on this machine."""
    if not haproxy:
        return dict(ENVIRONMENT)
    fallback_http, fallback_grpc, metrics, stats = free_ports(4)
    return ENVIRONMENT | {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_ENABLE_DIRECT_INGRESS": "1",
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(fallback_http),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(fallback_grpc),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(metrics),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(stats),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(directory / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(directory / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(directory),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(directory / "server-state"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(directory / "metrics.sock"),
    }


def write_configuration(path: Path, port: int, app: AppSettings, live: LiveSettings) -> None:
    document: dict[str, Any] = {
        "proxy_location": "HeadOnly",
        "http_options": {"host": _HOST, "port": port},
        "logging_config": {"log_level": "WARNING", "enable_access_log": False},
        "applications": [
            {
                "name": "disco",
                "route_prefix": "/",
                "import_path": IMPORT_PATH,
                "args": app.model_dump(mode="json"),
                "deployments": [{"name": ROUTER, "user_config": live.model_dump(mode="json")}],
            }
        ],
    }
    path.write_text(yaml.safe_dump(document), "utf-8")


def main(configuration: str) -> int:
    with stop_by_signal():
        try:
            with running(load(configuration), dict(os.environ)):
                threading.Event().wait()
        except LaunchFailed as error:
            print(error.message)
            if error.logs is not None:
                shutil.rmtree(error.logs, ignore_errors=True)
            return 1
        except Stopped:
            pass
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
