"""A real model's answer that moved, as another project's store of traces has it: Arize Phoenix, over OTLP and REST."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.collector import attributes
from benchmarks.stack import free_ports
from benchmarks.trace import ask_until_moved, record, serving
from tests.e2e.test_application import until

pytestmark = [pytest.mark.traces, pytest.mark.llama, pytest.mark.timeout(900)]

RECORDED = Path(__file__).parents[2] / "docs" / "traces" / "migration.otlp.json"


@contextmanager
def phoenix(folder: Path) -> Iterator[str]:
    """Its address. Everything it keeps is in ``folder``, and it asks nothing of the network."""
    program = os.environ.get("DISCO_TEST_PHOENIX", ".venv-phoenix/bin/phoenix")
    if not Path(program).exists():
        pytest.skip("Arize Phoenix is not there; `make test-traces` installs it")
    port, grpc_port = free_ports(2)
    environment = os.environ | {
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(grpc_port),
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_TELEMETRY_ENABLED": "false",
        "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
    }
    url = f"http://127.0.0.1:{port}"
    with (folder / "phoenix.log").open("wb") as log:
        process = subprocess.Popen([program, "serve"], env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            until(lambda: process.poll() is not None or answers(url), 180.0)
            assert process.poll() is None, (folder / "phoenix.log").read_text("utf-8", "replace")[-3000:]
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz").status_code == 200
    except httpx.HTTPError:
        return False


def stored(url: str, trace_id: str) -> list[dict[str, Any]]:
    """The trace's spans, as Phoenix has them."""
    response = httpx.get(f"{url}/v1/projects/default/spans", params={"limit": 1000, "trace_id": trace_id}, timeout=60)
    if response.status_code == 404:
        return []
    return [span for span in response.json()["data"] if span["context"]["trace_id"] == trace_id]


def test_phoenix_shows_legs_migration_and_first_token_of_a_real_model(tmp_path: Path) -> None:
    with phoenix(tmp_path) as store:
        with serving(store, tmp_path) as url:
            trace_id, report = ask_until_moved(url)
        wanted = 2 + len(report["legs"]) + len(report["migrations"])
        until(lambda: len([s for s in stored(store, trace_id) if is_routers(s)]) >= wanted, 60.0)
        spans = stored(store, trace_id)
    legs = [span for span in spans if "disco.leg.reason" in span["attributes"]]
    seen = sorted((s["attributes"]["disco.endpoint"], s["attributes"]["disco.leg.outcome"]) for s in legs)
    assert seen == sorted((leg["endpoint"], leg["outcome"]) for leg in report["legs"])
    (handoff,) = [span for span in spans if span["name"] == "handoff"]
    (moved,) = [move for move in report["migrations"] if move["outcome"] == "completed"]
    assert handoff["attributes"]["disco.handoff.source"] == moved["from"]
    assert handoff["attributes"]["disco.handoff.target"] == moved["to"]
    assert handoff["attributes"]["disco.handoff.outcome"] == "completed"
    (answer,) = [span for span in spans if span["name"] == "chat disco"]
    received = answer["attributes"]["gen_ai.response.time_to_first_chunk"]
    assert received == pytest.approx(report["ttft_s"], abs=0.05)
    engines = [span for span in spans if span["name"].startswith("generate ")]
    assert {span["name"] for span in engines} == {"generate cloud", "generate phone"}
    assert {"queue", "prefill", "decode"} <= {span["name"] for span in spans}


def is_routers(span: dict[str, Any]) -> bool:
    return span["name"].startswith(("POST ", "chat ")) or span["name"] == "handoff"


def shape(trace: dict[str, Any]) -> set[tuple[str, str]]:
    """Which span names each service has."""
    return {
        (attributes(resource["resource"])["service.name"], span["name"])
        for resource in trace["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    }


def test_a_recorded_trace_is_what_the_documents_show(tmp_path: Path) -> None:
    trace, report = record(tmp_path)
    assert {"handoff", "decode"} <= {name for _, name in shape(trace)}
    assert shape(trace) == shape(json.loads(RECORDED.read_text("utf-8")))
    told = json.dumps(trace)
    assert not [leg["attempt"] for leg in report["legs"] if leg["attempt"] not in told]
