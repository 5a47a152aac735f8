"""A device that joins as a node of the cluster: who waits for its labels says so, and gets it when it comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RaySession
from tests.e2e.test_application import answer, chat, ready, until

pytestmark = [pytest.mark.ray, pytest.mark.nodes, pytest.mark.timeout(240)]

#: Within which an endpoint that no node can host says so.
SOON = 10.0

SIMULATED = {"type": "simulated", "seed": 3, "overhead": 0.01, "decode_rate": 200}
ARGS: dict[str, Any] = {
    "endpoints": {
        "cloud": {"kind": "cloud", "slots": 8, "engine": SIMULATED, "placement": {"num_cpus": 0.1}},
        "phone": {
            "kind": "device",
            "slots": 8,
            "engine": SIMULATED,
            "placement": {"num_cpus": 0.1, "label_selector": {"tier": "edge"}},
        },
    },
    "router": {"num_cpus": 0.1},
}


@contextmanager
def joined(log: Path, *labels: str) -> Iterator[None]:
    """A second node of the cluster, on this machine, as a device's owner starts it."""
    import ray

    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1"]
    command += [f"--address={ray.get_runtime_context().gcs_address}", f"--labels={','.join(labels)}"]
    command += [f"--object-store-memory={80 * 2**20}", "--disable-usage-stats"]
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True) as node:
        try:
            yield
        finally:
            os.killpg(node.pid, signal.SIGTERM)
            node.wait(60)


@pytest.fixture
def url(ray_session: RaySession) -> Iterator[str]:
    from ray import serve
    from ray.serve._private.api import _get_global_client
    from ray.serve.schema import ServeDeploySchema

    application = {"name": "join", "route_prefix": "/", "import_path": "serve_app.app:build_app", "args": ARGS}
    _get_global_client().deploy_apps(ServeDeploySchema.model_validate({"applications": [application]}))
    yield ray_session.url
    serve.delete("join")


def state(url: str, endpoint: str) -> dict[str, Any]:
    """What /ready says of it; while the router starts, nothing."""
    told: dict[str, Any] = ready(url)["endpoints"].get(endpoint, {"ready": False, "reason": ""})
    return told


def test_a_deployment_that_waits_for_a_node_says_for_which_and_gets_it_when_it_joins(
    ray_session: RaySession, url: str, tmp_path: Path
) -> None:
    until(lambda: state(url, "cloud")["ready"])
    came = time.monotonic()
    until(lambda: "tier: edge" in state(url, "phone")["reason"])
    assert time.monotonic() - came < SOON
    assert answer(url, chat("who", max_tokens=4))["usage"]["completion_tokens"] == 4

    on_device = chat("who", max_tokens=4) | {"disco": {"pin": "device_only", "report": True}}
    with joined(tmp_path / "node.log", "tier=edge", "cpu-arch=arm64"):
        until(lambda: state(url, "phone")["ready"])
        assert answer(url, on_device)["disco"]["winner"] == "phone"
    # It has left.
    until(lambda: not state(url, "phone")["ready"])
    assert answer(url, chat("who", max_tokens=4))["usage"]["completion_tokens"] == 4
