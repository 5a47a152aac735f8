"""The shipped configuration under Ray Serve, and what is left of vLLM when its replica goes."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from serve_app.cli.configfile import load
from tests.conftest import RaySession
from tests.vllm.processes import LONGEST_END, LONGEST_START, engines, lives, title_of, until, workers

pytestmark = [pytest.mark.ray, pytest.mark.vllm]


@dataclass(frozen=True, slots=True)
class Service:
    """``reasons``: why the cloud was not ready, as it said while it started."""

    url: str
    reasons: frozenset[str]


@pytest.fixture(scope="module")
def service(ray_session: RaySession, folder: Path) -> Service:
    """configs/vllm.yaml with vLLM's metrics, once both of its endpoints are ready. The last test deletes it."""
    from ray.serve._private.api import _get_global_client
    from ray.serve.schema import ServeDeploySchema

    (application,) = copy.deepcopy(load("vllm").document["applications"])
    application["args"]["endpoints"]["cloud"]["engine"]["metrics"] = True
    _get_global_client().deploy_apps(ServeDeploySchema.model_validate({"applications": [application]}), _blocking=False)
    reasons: set[str] = set()

    def all_ready() -> bool:
        states = readiness(ray_session.url)
        reasons.update(state["reason"] for name, state in states.items() if name == "cloud")
        return bool(states) and all(state["ready"] for state in states.values())

    until(all_ready, LONGEST_START)
    return Service(ray_session.url, frozenset(reasons))


def readiness(url: str) -> dict[str, Any]:
    """Each endpoint's state; none while the router is not there yet."""
    try:
        endpoints: dict[str, Any] = httpx.get(f"{url}/ready", timeout=10.0).json()["endpoints"]
    except (httpx.HTTPError, ValueError):
        return {}
    return endpoints


def test_the_start_says_how_far_it_is(service: Service) -> None:
    assert any(reason.startswith("starting vLLM with LlamaForCausalLM") for reason in service.reasons)


@pytest.mark.parametrize("pin", ["cloud_only", "device_only"])
def test_each_endpoint_answers(service: Service, pin: str) -> None:
    body = {
        "model": "disco",
        "max_tokens": 8,
        "messages": [{"role": "user", "content": "Tell me a short story."}],
        "disco": {"report": True, "pin": pin},
    }
    answer = httpx.post(f"{service.url}/v1/chat/completions", json=body, timeout=120.0).json()
    assert answer["choices"][0]["message"]["content"]
    assert answer["usage"]["completion_tokens"] == 8
    assert {leg["outcome"] for leg in answer["disco"]["legs"]} == {"completed"}


def test_vllms_own_metrics_are_at_the_nodes_agent(service: Service) -> None:
    import ray

    (node,) = ray.nodes()
    url = f"http://127.0.0.1:{node['MetricsExportPort']}/metrics"
    until(lambda: "ray_vllm_generation_tokens_total" in httpx.get(url, timeout=10.0).text, LONGEST_END)


def replicas() -> list[psutil.Process]:
    """Ray's workers below this process: another test may have a vLLM of its own there."""
    below = psutil.Process().children(recursive=True)
    return [process for process in below if title_of(process).startswith("ray::")]


def of_the_service() -> list[psutil.Process]:
    """vLLM's processes."""
    return [process for replica in replicas() for process in (*engines(replica), *workers(replica))]


def test_nothing_of_vllm_outlives_its_replica(service: Service) -> None:
    """The first replica is killed at work; the one in its place is told to go while vLLM is still on its way."""
    from ray import serve

    at_work = of_the_service()
    (replica,) = (replica for replica in replicas() if workers(replica))
    replica.kill()
    until(lambda: not any(map(lives, at_work)), LONGEST_END)
    until(of_the_service, LONGEST_START)
    on_its_way = of_the_service()
    serve.delete("disco")
    until(lambda: not any(map(lives, on_its_way)), LONGEST_END)
    assert not of_the_service()
