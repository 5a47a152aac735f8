"""API keys over Ray Serve: two router replicas, one budget, which outlives both of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from serve_app.keys import new_key, sha256_of
from serve_app.spending import SpendingFile
from tests.conftest import RaySession
from tests.e2e.test_application import chat, ready, until

pytestmark = pytest.mark.ray

ALICE, BOB = new_key(), new_key()
USD = 0.001


def endpoint(kind: str) -> dict[str, Any]:
    engine = {"type": "simulated", "seed": 3, "overhead": 0.01, "decode_rate": 200}
    return {"kind": kind, "slots": 8, "engine": engine, "placement": {"num_cpus": 0.1}}


LIVE: dict[str, Any] = {"prices": {"endpoints": {"cloud": {"output_usd_per_mtok": 20.0}}}}


@pytest.fixture
def url(ray_session: RaySession, tmp_path: Path) -> Iterator[str]:
    from ray import serve
    from ray.serve._private.api import _get_global_client
    from ray.serve.schema import ServeDeploySchema

    keys = {
        "alice": {"sha256": sha256_of(ALICE.encode()), "pin": "cloud_only", "usd": USD},
        "bob": {"sha256": sha256_of(BOB.encode()), "endpoints": ["phone"]},
    }
    application = {
        "name": "keyed",
        "route_prefix": "/",
        "import_path": "serve_app.app:build_app",
        "args": {
            "endpoints": {"cloud": endpoint("cloud"), "phone": endpoint("device")},
            "router": {"replicas": 2, "num_cpus": 0.1},
            "access": {"keys": keys, "spending_folder": str(tmp_path)},
        },
        "deployments": [{"name": "DiscoRouter", "user_config": LIVE}],
    }
    _get_global_client().deploy_apps(ServeDeploySchema.model_validate({"applications": [application]}), _blocking=True)
    until(lambda: all(e["ready"] for e in ready(ray_session.url)["endpoints"].values()))
    yield ray_session.url
    serve.delete("keyed")


def ask(url: str, key: str, **disco: Any) -> httpx.Response:
    body = chat("tell me", max_tokens=10, disco={"report": True} | disco)
    return httpx.post(f"{url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"}, timeout=60)


def routers() -> set[int]:
    found = set()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if ":DiscoRouter" in " ".join(process.cmdline()):
                found.add(process.pid)
    return found


def test_a_budget_is_one_for_all_routers_and_outlives_them(url: str, tmp_path: Path) -> None:
    assert httpx.get(f"{url}/v1/models").status_code == 401
    bobs = ask(url, BOB).json()["disco"]
    assert (bobs["key"], bobs["eligible"]) == ("bob", ["phone"])
    assert ask(url, BOB, endpoints=["cloud"]).status_code == 403

    paid = 0.0
    while (response := ask(url, ALICE)).status_code == 200:
        report = response.json()["disco"]
        assert report["eligible"] == ["cloud"]
        paid += report["cost_usd"]
        until(lambda usd=paid: spent(tmp_path) == pytest.approx(usd))
    assert USD <= paid < USD + report["cost_usd"]
    assert response.json()["error"]["code"] == "insufficient_quota"
    assert [ask(url, ALICE).status_code for _ in range(8)] == [429] * 8, "whichever router is asked"

    before = routers()
    for router in before:
        os.kill(router, signal.SIGKILL)
    until(lambda: len(routers() - before) == 2 and answers(url, BOB))
    assert [ask(url, ALICE).status_code for _ in range(8)] == [429] * 8
    assert spent(tmp_path) == pytest.approx(paid)


def spent(folder: Path) -> float:
    with closing(SpendingFile(folder)) as file:
        return file.spent("alice").total


def answers(url: str, key: str) -> bool:
    try:
        return ask(url, key).status_code == 200
    except httpx.HTTPError:
        return False
