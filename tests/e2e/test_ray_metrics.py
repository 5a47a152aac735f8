"""The router's metrics at Ray's own port, where every node's are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.conftest import RaySession
from tests.e2e.test_application import ARGS, LIVE, answer, chat, ready, until
from tests.support.prometheus import names, value

# Ray's metrics leave a process every ten seconds.
pytestmark = [pytest.mark.ray, pytest.mark.traces]


@pytest.fixture
def url(ray_session: RaySession) -> Iterator[str]:
    from ray import serve
    from ray.serve._private.api import _get_global_client
    from ray.serve.schema import ServeDeploySchema

    application: dict[str, Any] = {
        "name": "measured",
        "route_prefix": "/",
        "import_path": "serve_app.app:build_app",
        "args": json.loads(json.dumps(ARGS)) | {"telemetry": {"ray_metrics": True}},
        "deployments": [{"name": "DiscoRouter", "user_config": LIVE}],
    }
    document = ServeDeploySchema.model_validate({"applications": [application]})
    _get_global_client().deploy_apps(document, _blocking=True)
    until(lambda: all(e["ready"] for e in ready(ray_session.url)["endpoints"].values()))
    yield ray_session.url
    serve.delete("measured")


def at_ray() -> str:
    import ray

    (node,) = ray.nodes()
    return httpx.get(f"http://127.0.0.1:{node['MetricsExportPort']}/metrics").text


def test_requests_and_gauges_arrive_at_rays_port(url: str) -> None:
    moved = answer(url, chat("tell me", max_tokens=60, disco={"report": True}))
    assert moved["disco"]["migrations"]
    wanted = {
        "ray_disco_requests_total",
        "ray_disco_budget_share",
        "ray_disco_migrations_total",
        "ray_gen_ai_server_time_to_first_token_seconds_count",
    }
    until(lambda: wanted <= names(at_ray()))
    shown = at_ray()
    assert value(shown, "ray_disco_requests_total", code="ok") == 1
    assert value(shown, "ray_disco_wins_total", endpoint="phone") == 1
    assert value(shown, "ray_gen_ai_server_time_to_first_token_seconds_count", gen_ai_request_model="disco") == 1
