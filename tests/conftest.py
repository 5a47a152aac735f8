"""One local Ray with Serve for every test marked ``ray``, in the mode in which the service runs, without HAProxy."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
from hypothesis import settings

from tests.support.effort import THOROUGH

# A property is judged by its examples, the same ones in every run of the tests, not by how busy the machine is.
settings.register_profile("disco", deadline=None, derandomize=not THOROUGH)
settings.load_profile("disco")

# Ray reads its environment when it is imported.
os.environ.update(
    RAY_USAGE_STATS_ENABLED="0",
    RAY_AUTH_MODE="disabled",
    RAY_SERVE_CONTROL_LOOP_INTERVAL_S="0.02",
    # Other tests keep the machine busy while Serve's proxy comes up, for which it has 5 s otherwise.
    RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S="30",
    RAY_SERVE_LOG_TO_STDERR="0",
    RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S="0",
)
os.environ.setdefault("RAY_SERVE_THROUGHPUT_OPTIMIZED", "1")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RaySession:
    """Handles belong to the event loop of their first call, so every test runs on this one. ``url`` is Serve's."""

    runner: asyncio.Runner
    url: str

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(coro)


@pytest.fixture(scope="session")
def ray_session() -> Iterator[RaySession]:
    import ray
    from ray import serve
    from ray.serve._private import client

    # Ray's unix sockets limit the length of this path, hence not pytest's own directory.
    folder = tempfile.mkdtemp(prefix="r")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    client.CLIENT_POLLING_INTERVAL_S = client.CLIENT_CHECK_CREATION_POLLING_INTERVAL_S = 0.02
    try:
        with asyncio.Runner() as runner:
            ray.init(
                address="local",
                num_cpus=8,
                include_dashboard=False,
                object_store_memory=80 * 2**20,
                log_to_driver=False,
                logging_level="ERROR",
                configure_logging=False,
                _temp_dir=folder,
            )
            try:
                serve.start(
                    http_options={"host": "127.0.0.1", "port": port},
                    logging_config={"log_level": "ERROR", "enable_access_log": False},
                )
                yield RaySession(runner, f"http://127.0.0.1:{port}")
                serve.shutdown()
            finally:
                ray.shutdown()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Last, for their Ray keeps a good part of a core busy from the first of them to the end.
    items.sort(key=lambda item: "ray_session" in item.fixturenames)
    for item in items:
        # Of parallel workers, one runs all that share a Ray, and each file runs on one.
        shares_ray = "ray_session" in item.fixturenames
        item.add_marker(pytest.mark.xdist_group("ray" if shares_ray else str(item.path)))
        if item.get_closest_marker("ray"):
            # Ray's own deprecations and unclosed sockets are not this project's to fix.
            item.add_marker(pytest.mark.filterwarnings("ignore"))
