"""The application as a user meets it: a configuration, Ray Serve, HTTP, the official client."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import psutil
import pytest

from tests.conftest import RaySession
from tests.support.moving import LIVE

pytestmark = pytest.mark.ray

#: The phone answers first but is dear; the cloud, which writes the same text, is cheap: every stream moves.
ARGS: dict[str, Any] = {
    "endpoints": {
        "cloud": {
            "kind": "cloud",
            "slots": 4,
            "engine": {"type": "simulated", "seed": 3, "overhead": 0.4, "decode_rate": 40, "can_park": False},
            "placement": {"num_cpus": 0.1},
        },
        "phone": {
            "kind": "device",
            "slots": 1,
            "engine": {"type": "simulated", "seed": 3, "overhead": 0.05, "decode_rate": 40},
            "placement": {"num_cpus": 0.1},
        },
    },
    "models": {"disco": {}, "cloud-model": {"endpoints": ["cloud"]}},
}


@pytest.fixture(scope="module")
def url(ray_session: RaySession) -> Iterator[str]:
    from ray import serve
    from ray.serve._private.api import _get_global_client
    from ray.serve.schema import ServeDeploySchema

    document = {
        "applications": [
            {
                "name": "e2e",
                "route_prefix": "/",
                "import_path": "serve_app.app:build_app",
                "args": ARGS,
                "deployments": [{"name": "DiscoRouter", "user_config": LIVE}],
            }
        ]
    }
    _get_global_client().deploy_apps(ServeDeploySchema.model_validate(document), _blocking=True)
    until(lambda: all(e["ready"] for e in ready(ray_session.url)["endpoints"].values()))
    yield ray_session.url
    serve.delete("e2e")


def until(condition: Any, limit: float = 60.0) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.05)


def ready(url: str) -> dict[str, Any]:
    try:
        body: dict[str, Any] = httpx.get(f"{url}/ready").json()
    except (httpx.HTTPError, ValueError):
        return {"endpoints": {"none": {"ready": False}}}
    return body


def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def chat(content: str, **fields: Any) -> dict[str, Any]:
    return {"model": "disco", "messages": [{"role": "user", "content": content}], **fields}


def answer(url: str, body: dict[str, Any]) -> dict[str, Any]:
    response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    assert response.status_code == 200, response.text
    parsed: dict[str, Any] = response.json()
    return parsed


def running(url: str) -> float:
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("disco_streams_running ")))


def test_the_official_client_streams_and_gets_usage(url: str) -> None:
    with client(url) as api:
        chunks = list(
            api.chat.completions.create(
                model="disco",
                messages=[{"role": "user", "content": "hello"}],
                stream=True,
                stream_options={"include_usage": True},
                max_tokens=30,
            )
        )
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert len({(c.id, c.model, c.created) for c in chunks}) == 1
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["length"]
    usage = chunks[-1].usage
    assert usage is not None
    assert chunks[-1].choices == []
    assert (usage.completion_tokens, usage.total_tokens) == (30, usage.prompt_tokens + 30)


def test_a_migration_over_actors_does_not_change_the_text(url: str) -> None:
    moved = answer(url, chat("tell me", max_tokens=60, disco={"report": True}))
    alone = answer(url, chat("tell me", max_tokens=60, disco={"report": True, "pin": "device_only"}))
    assert [(m["from"], m["to"], m["outcome"]) for m in moved["disco"]["migrations"]] == [
        ("phone", "cloud", "completed")
    ]
    assert alone["disco"]["migrations"] == []
    assert moved["choices"][0]["message"]["content"] == alone["choices"][0]["message"]["content"]
    assert moved["usage"] == alone["usage"]


def faults(url: str) -> float:
    """Legs that failed, of whatever request."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    failed = (line for line in lines if line.startswith("disco_legs_total{") and 'outcome="failed"' in line)
    return sum(float(line.rpartition(" ")[2]) for line in failed)


def test_a_departed_client_frees_the_only_slot_and_is_nobodys_fault(url: str) -> None:
    target, before = urlsplit(url), faults(url)
    body = json.dumps(chat("bye", stream=True, max_tokens=2000, disco={"pin": "device_only"})).encode()
    for _ in range(10):
        with socket.create_connection((target.hostname, target.port), timeout=30) as raw:
            raw.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
                + f"content-length: {len(body)}\r\n\r\n".encode()
                + body
            )
            assert b" 200 " in raw.recv(4096)
    until(lambda: running(url) == 0)
    assert faults(url) == before
    assert (
        answer(url, chat("still there?", max_tokens=5, disco={"pin": "device_only"}))["usage"]["completion_tokens"] == 5
    )


def test_a_killed_replica_is_survived_by_its_stream(url: str) -> None:
    alone = answer(url, chat("survive", max_tokens=80, disco={"pin": "device_only"}))
    text, killed = "", False
    body = chat("survive", max_tokens=80, stream=True, disco={"report": True, "migrate": False})
    report: dict[str, Any] = {}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as response:
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            text += event["choices"][0]["delta"].get("content", "")
            report = event["disco"]
            if not killed:
                killed = True
                assert report["endpoint"] == "phone"
                os.kill(replica_pid("endpoint-phone"), signal.SIGKILL)
    assert [(m["from"], m["to"], m["reason"]) for m in report["migrations"]] == [("phone", "cloud", "rescue")]
    assert text == alone["choices"][0]["message"]["content"]
    until(lambda: ready(url)["endpoints"]["phone"]["ready"])


def replica_pid(deployment: str) -> int:
    """The worker process among this test run's own children; Ray names it after its deployment."""
    (worker,) = [p for p in psutil.Process().children(recursive=True) if f":{deployment}" in " ".join(p.cmdline())]
    return worker.pid


def test_models_and_unknown_ones(url: str) -> None:
    with client(url) as api:
        assert {model.id for model in api.models.list()} == {"disco", "cloud-model"}
        with pytest.raises(openai.NotFoundError) as refused:
            api.chat.completions.create(model="nope", messages=[{"role": "user", "content": "x"}])
    assert refused.value.code == "model_not_found"


def test_a_pin_that_nobody_satisfies_is_refused(url: str) -> None:
    body = chat("x", disco={"pin": "device_only"}) | {"model": "cloud-model"}
    response = httpx.post(f"{url}/v1/chat/completions", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "disco.pin")


def test_a_foreign_host_header_is_refused(url: str) -> None:
    response = httpx.get(f"{url}/v1/models", headers={"host": "evil.example"})
    assert response.status_code == 403


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("model", ["disco", "nope"])
def test_each_response_has_one_request_id_which_is_the_clients_if_it_sent_one(
    url: str, model: str, stream: bool
) -> None:
    body = chat("x", stream=stream, max_tokens=2) | {"model": model}
    for given in ({"x-request-id": "mine-1"}, {}):
        response = httpx.post(f"{url}/v1/chat/completions", json=body, headers=given)
        assert response.status_code == (200 if model == "disco" else 404)
        (identity,) = response.headers.get_list("x-request-id")
        assert identity == given.get("x-request-id", identity)
        assert identity


def test_a_prompt_that_fits_no_context_is_refused_by_the_replicas(url: str) -> None:
    response = httpx.post(f"{url}/v1/chat/completions", json=chat("word " * 9000), timeout=60)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["retryable"]) == (400, "context_length_exceeded", False)
    assert error["param"] == "messages"
