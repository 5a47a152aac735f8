"""Faults that only processes have: a replica is killed, or is stopped and comes back, or is one of two that dies; and
a reader at the other end of a socket who is slow."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from serve_app.settings import LiveSettings
from tests.conftest import RaySession
from tests.e2e.test_application import chat, ready, until

pytestmark = pytest.mark.ray

ENGINE = {"type": "simulated", "seed": 3, "overhead": 0.1, "decode_rate": 40, "output_tokens": [200, 200]}
HOSE = {"type": "simulated", "overhead": 0.1, "decode_rate": 20_000, "output_tokens": [10_000, 10_000]}
PLACE = {"num_cpus": 0.1, "replicas": 2}
ARGS: dict[str, Any] = {
    "endpoints": {
        "cloud": {"kind": "cloud", "slots": 8, "engine": ENGINE, "placement": {"num_cpus": 0.1}},
        "phone": {"kind": "device", "slots": 8, "engine": ENGINE, "placement": PLACE},
        "hose": {"kind": "cloud", "slots": 8, "engine": HOSE, "placement": {"num_cpus": 0.1}},
    },
    "models": {"disco": {"endpoints": ["cloud", "phone"]}, "hose": {"endpoints": ["hose"]}},
}
LIVE: dict[str, Any] = {
    "policy": {"name": "device-only"},
    "migration": {"mode": "off"},
    "limits": {"first_token_seconds": 4.0, "idle_seconds": 1.0, "breaker_seconds": 1.0, "max_tokens": 10_000},
}


def deploy(live: dict[str, Any]) -> None:
    from ray.serve._private.api import _get_global_client
    from ray.serve.schema import ServeDeploySchema

    router = {"name": "DiscoRouter", "user_config": live}
    application = {"name": "failures", "import_path": "serve_app.app:build_app", "args": ARGS, "deployments": [router]}
    schema = ServeDeploySchema.model_validate({"applications": [application | {"route_prefix": "/failures"}]})
    _get_global_client().deploy_apps(schema, _blocking=True)


@pytest.fixture(scope="module")
def url(ray_session: RaySession) -> Iterator[str]:
    from ray import serve

    deploy(LIVE)
    base = f"{ray_session.url}/failures"
    until(lambda: all(e["ready"] for e in ready(base)["endpoints"].values()))
    yield base
    serve.delete("failures")


def phones() -> list[psutil.Process]:
    family = psutil.Process().children(recursive=True)
    return [p for p in family if ":failures:endpoint-phone" in " ".join(p.cmdline())]


def ask(url: str, number: int, **fields: Any) -> httpx.Response:
    return httpx.post(
        f"{url}/v1/chat/completions", json=chat(f"question {number}", max_tokens=20, **fields), timeout=60
    )


def streamed(url: str, words: str, disturb: Any, tokens: int = 80) -> tuple[str, dict[str, Any]]:
    """The text and the report of a stream, with ``disturb()`` after its third event."""
    text, events, report = "", 0, {}
    body = chat(words, max_tokens=tokens, stream=True, disco={"report": True})
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as response:
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            text += event["choices"][0]["delta"].get("content", "")
            report, events = event["disco"], events + 1
            if events == 3:
                disturb()
    return text, report


def generated(url: str, model: str) -> float:
    """Tokens of all answers by this model that are over."""
    families = text_string_to_metric_families(httpx.get(f"{url}/metrics", timeout=60).text)
    wanted = {"gen_ai_request_model": model, "gen_ai_token_type": "output"}
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == "gen_ai_client_token_usage_sum" and wanted.items() <= sample.labels.items()
    )


def test_a_source_of_ten_thousand_tokens_stays_near_a_slow_reader_behind_a_socket(url: str) -> None:
    rate, shown, began = 10.0, 0, time.monotonic()
    body = chat("flow", model="hose", max_tokens=10_000, stream=True, disco={"consumption_rate": rate})
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as response:
        for line in response.iter_lines():
            if line.startswith("id: "):
                shown = int(line.removeprefix("id: "))
            if time.monotonic() - began > 4.0:
                break
            time.sleep(max(0.0, began + shown / rate - time.monotonic()))
    until(lambda: generated(url, "hose") > 0)
    read, reader = rate * (time.monotonic() - began), LiveSettings().reader
    assert shown <= generated(url, "hose") <= read + reader.ahead_tokens + rate * reader.slack


def logged() -> str:
    """What the router's replicas have written into their logs."""
    import ray

    folder = Path(ray._private.worker._global_node.get_logs_dir_path())
    return "".join(path.read_text("utf-8") for path in (folder / "serve").glob("replica_failures_DiscoRouter_*.log"))


def test_what_the_router_has_to_say_is_in_its_log(url: str) -> None:
    deploy({"policy": {"budget": 3}})
    until(lambda: "policy.budget" in logged())
    deploy(LIVE)
    assert ask(url, 0).status_code == 200


def test_a_stopped_replica_is_left_within_the_idle_limit_and_serves_again_when_it_goes_on(url: str) -> None:
    calm, _ = streamed(url, "stop me", lambda: None)
    stopped = phones()
    stopped_at: list[float] = []

    def stop() -> None:
        stopped_at.append(time.monotonic())
        for process in stopped:
            process.send_signal(signal.SIGSTOP)

    try:
        text, report = streamed(url, "stop me", stop)
        assert text == calm
        assert [(m["to"], m["reason"], m["outcome"]) for m in report["migrations"]] == [
            ("cloud", "rescue", "completed")
        ]
        before = ask(url, 1)
        assert before.status_code == 200, "one that is stopped before its first token is left, too"
    finally:
        for process in stopped:
            process.send_signal(signal.SIGCONT)

    def back() -> bool:
        answer = ask(url, 2, disco={"report": True})
        return answer.status_code == 200 and answer.json()["disco"]["winner"] == "phone"

    until(back)
    assert {p.pid for p in phones()} == {p.pid for p in stopped}, "nobody had to be replaced"


def test_requests_after_one_of_two_replicas_was_killed_do_not_fail(url: str) -> None:
    until(lambda: len(phones()) == 2)
    os.kill(phones()[0].pid, signal.SIGKILL)
    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(lambda number: ask(url, number), range(20)))
    assert [answer.status_code for answer in answers] == [200] * 20
    until(lambda: len(phones()) == 2)


def test_a_killed_endpoint_is_blamed_and_its_neighbour_is_not(url: str) -> None:
    until(lambda: len(phones()) == 2)

    def kill() -> None:
        for process in phones():
            os.kill(process.pid, signal.SIGKILL)

    _, report = streamed(url, "kill me", kill)
    failed = [(leg["endpoint"], leg["error"]) for leg in report["legs"] if leg["outcome"] == "failed"]
    assert failed
    assert {endpoint for endpoint, _ in failed} == {"phone"}
    assert report["legs"][-1]["endpoint"] == "cloud"
