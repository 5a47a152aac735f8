"""A device that registers at one of two routers serves through both, and outlives a router that is killed."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import psutil
import pytest

from serve_app.keys import new_key, sha256_of
from tests.conftest import RaySession
from tests.e2e.test_application import chat, ready, until

pytestmark = [pytest.mark.ray, pytest.mark.nodes, pytest.mark.timeout(240)]

ALICE, BOSS = new_key(), new_key()
ARGS: dict[str, Any] = {
    "endpoints": {
        "cloud": {
            "kind": "cloud",
            "slots": 8,
            "engine": {"type": "simulated", "overhead": 0.01, "decode_rate": 200},
            "placement": {"num_cpus": 0.1},
        },
    },
    "access": {
        "keys": {
            "alice": {"sha256": sha256_of(ALICE.encode())},
            "boss": {"sha256": sha256_of(BOSS.encode()), "scope": "operator"},
        }
    },
    "devices": {"allow": ["127.0.0.0/8"], "heartbeat_seconds": 60},
    "router": {"replicas": 2, "num_cpus": 0.1},
}
EVENTS = [
    {"choices": [{"index": 0, "delta": {"content": "from the phone"}, "finish_reason": None}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
]


@contextmanager
def phone() -> Iterator[str]:
    """The base URL of a server that always says the same."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            for event in EVENTS:
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


@pytest.fixture
def url(ray_session: RaySession) -> Iterator[str]:
    from ray import serve
    from ray.serve._private.api import _get_global_client
    from ray.serve.schema import ServeDeploySchema

    application = {"name": "devices", "route_prefix": "/", "import_path": "serve_app.app:build_app", "args": ARGS}
    _get_global_client().deploy_apps(ServeDeploySchema.model_validate({"applications": [application]}))
    until(lambda: ready(ray_session.url)["endpoints"].get("cloud", {}).get("ready"), 120)
    until(lambda: len(routers()) == 2, 120)
    yield ray_session.url
    serve.delete("devices")


def routers() -> list[psutil.Process]:
    return [p for p in psutil.Process().children(recursive=True) if ":devices:DiscoRouter" in command_of(p)]


def command_of(process: psutil.Process) -> str:
    """Empty once it is gone."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def pinned(url: str) -> tuple[int, str]:
    """Status, and who answered or why nobody did."""
    body = chat("who", max_tokens=4) | {"disco": {"pin": "device_only", "report": True}}
    try:
        response = httpx.post(f"{url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {ALICE}"})
        said = response.json()
    except (httpx.HTTPError, ValueError):
        # No router is there to answer.
        return 0, ""
    return response.status_code, said["disco"]["winner"] if response.status_code == 200 else said["error"]["code"]


def test_what_registers_at_one_router_serves_through_all_of_them_and_after_their_death(url: str) -> None:
    assert pinned(url) == (503, "endpoint_unavailable")
    boss = {"authorization": f"Bearer {BOSS}"}
    with phone() as base:
        device = {"name": "phone", "base_url": base, "model": "m", "owners": ["alice"], "continues_by": "nothing"}
        assert httpx.post(f"{url}/disco/devices", json=device, headers=boss).status_code == 201
        until(lambda: all(pinned(url) == (200, "phone") for _ in range(8)))
        for router in routers():
            os.kill(router.pid, signal.SIGKILL)
        until(lambda: len(routers()) == 2, 120)
        until(lambda: all(pinned(url) == (200, "phone") for _ in range(8)), 120)
