"""Traces of a service that runs as people run it: `disco up`, a process for each replica, a collector on the wire."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from benchmarks.collector import Collector, attributes, collecting
from benchmarks.stack import free_ports
from serve_app.cli.supervisor import DIRECTORIES, directory_prefix
from tests.cli.processes import DISCO, started, wait_until_ready
from tests.e2e.test_application import ARGS, LIVE, chat, until

pytestmark = [pytest.mark.traces, pytest.mark.timeout(600)]

CHAT = "/v1/chat/completions"
SERVER = f"POST {CHAT}"
PARENT = "b7ad6b7169203331"
#: A log's line that tells of something wrong; the router tells of an unexpected error by the request's id.
COMPLAINT = re.compile(r"ERROR|Traceback|^request \S+: ")
#: Trace ids of answers by their tokens.
LENGTHS = {10: "a" * 32, 1000: "b" * 32}


@dataclass(frozen=True)
class Service:
    url: str
    process: subprocess.Popen[str]
    collector: Collector

    def ask(self, *bodies: dict[str, Any], headers: list[dict[str, str]] | None = None) -> list[httpx.Response]:
        """All at once."""

        async def every() -> list[httpx.Response]:
            limits = httpx.Limits(max_connections=None)
            async with httpx.AsyncClient(base_url=self.url, timeout=120, trust_env=False, limits=limits) as client:
                calls = zip(bodies, headers or [{}] * len(bodies), strict=True)
                return await asyncio.gather(*(client.post(CHAT, json=body, headers=head) for body, head in calls))

        return asyncio.run(every())

    def leave(self, count: int) -> None:
        """So many clients that go away after the first bytes of their answers."""

        async def one(client: httpx.AsyncClient) -> None:
            async with client.stream("POST", CHAT, json=chat("bye", stream=True, max_tokens=1000)) as response:
                await anext(response.aiter_raw())

        async def every() -> None:
            async with httpx.AsyncClient(base_url=self.url, timeout=120, trust_env=False) as client:
                await asyncio.gather(*(one(client) for _ in range(count)))

        asyncio.run(every())

    def stop(self) -> str:
        """As `kill` does; returns what the command said meanwhile."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.stdout is not None
        said = self.process.stdout.read()
        assert self.process.wait(60) == 0
        return said

    def logs(self) -> str:
        """Of Serve's replicas and Ray's workers."""
        pids = [child.pid for child in psutil.Process(self.process.pid).children(recursive=True)]
        (folder,) = [folder for pid in pids for folder in DIRECTORIES.glob(f"{directory_prefix(pid)}*")]
        found = [*folder.rglob("serve/*.log"), *folder.rglob("worker-*.err")]
        assert found
        return "".join(path.read_text("utf-8", "replace") for path in found)


def configuration(collector: Collector, port: int, protocol: str = "http", **engine: Any) -> dict[str, Any]:
    args = json.loads(json.dumps(ARGS))
    for endpoint in args["endpoints"].values():
        endpoint["slots"] = 64
        endpoint["engine"] |= {"decode_rate": 200, "output_tokens": [1200, 1200], **engine}
    args["telemetry"] = {"otlp_endpoint": getattr(collector, protocol), "protocol": protocol}
    application = {
        "name": "disco",
        "route_prefix": "/",
        "import_path": "serve_app.app:build_app",
        "args": args,
        "deployments": [{"name": "DiscoRouter", "user_config": LIVE}],
    }
    return {"http_options": {"host": "127.0.0.1", "port": port}, "applications": [application]}


@contextmanager
def serving(folder: Path, protocol: str = "http") -> Iterator[Service]:
    (port,) = free_ports(1)
    with collecting(folder / "spans") as collector:
        path = folder / "config.yaml"
        path.write_text(yaml.safe_dump(configuration(collector, port, protocol)), "utf-8")
        with started("-c", DISCO, "up", str(path), "--port", str(port)) as process:
            wait_until_ready(process)
            yield Service(f"http://127.0.0.1:{port}", process, collector)


def by_trace(spans: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    traces: dict[str, list[dict[str, Any]]] = {}
    for span in spans:
        traces.setdefault(span["traceId"], []).append(span)
    return traces


def assert_whole(trace: list[dict[str, Any]]) -> None:
    """Nothing is missing: one request, all its legs, and the engine's work on each leg that got an answer."""
    known = {span["spanId"]: span for span in trace}
    (server,) = [span for span in trace if span["name"] == SERVER]
    (request,) = [span for span in trace if span.get("parentSpanId") == server["spanId"]]
    assert all(span.get("parentSpanId") in known for span in trace if span is not server)
    legs = [span for span in trace if "disco.leg.reason" in attributes(span)]
    told = attributes(request)
    assert len(legs) == told["disco.legs"]
    assert sum(span["name"] == "handoff" for span in trace) == told["disco.migrations"]
    engines = {span["parentSpanId"]: span for span in trace if span["name"].startswith("generate ")}
    for leg in legs:
        if attributes(leg)["disco.leg.outcome"] in ("completed", "handed_over"):
            engine = engines[leg["spanId"]]
            assert engine["service"] == f"disco-endpoint-{attributes(leg)['disco.endpoint']}"
            phases = {span["name"] for span in trace if span.get("parentSpanId") == engine["spanId"]}
            assert phases == {"queue", "prefill", "decode"}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_every_span_of_every_process_arrives_although_the_service_is_stopped(tmp_path: Path, protocol: str) -> None:
    ids = [f"{number:032x}" for number in range(1, 51)]
    given = [{"traceparent": f"00-{each}-{PARENT}-01"} for each in ids]
    with serving(tmp_path, protocol) as service:
        bodies = [chat("hello", max_tokens=40)] * 50
        answers = service.ask(*bodies, headers=given) + service.ask(*bodies)
        assert {answer.status_code for answer in answers} == {200}
        for length, trace_id in LENGTHS.items():
            body = chat("length", max_tokens=length, disco={"migrate": False, "consumption_rate": 200})
            (answer,) = service.ask(body, headers=[{"traceparent": f"00-{trace_id}-{PARENT}-01"}])
            assert answer.json()["usage"]["completion_tokens"] == length
        service.leave(50)
        until(lambda: not running(service.url))
        logs = service.logs()
        said = service.stop()
        spans = service.collector.spans()

    assert "different Context" not in logs + said
    assert [line for line in (logs + said).splitlines() if COMPLAINT.search(line)] == []
    traces = by_trace(spans)
    outcomes = Counter(attributes(span)["disco.outcome"] for span in spans if span["name"] == SERVER)
    assert outcomes == {"ok": 102, "cancelled": 50}
    assert len(traces) == 152, "a trace for each request, over all its processes"
    assert set(ids) <= set(traces)
    for trace in traces.values():
        assert_whole(trace)
    assert {span["parentSpanId"] for span in spans if span["traceId"] in ids and span["name"] == SERVER} == {PARENT}
    short, long = (sorted(span["name"] for span in traces[trace_id]) for trace_id in LENGTHS.values())
    assert short == long


def running(url: str) -> bool:
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return "disco_streams_running 0.0" not in lines


def test_answers_that_a_shutdown_cuts_have_their_spans_too(tmp_path: Path) -> None:
    with serving(tmp_path) as service, httpx.Client(base_url=service.url, timeout=60, trust_env=False) as client:
        body = chat("to the end", stream=True, max_tokens=1200)
        with client.stream("POST", CHAT, json=body) as response:
            lines = response.iter_lines()
            next(lines)
            service.process.send_signal(signal.SIGTERM)
            rest = list(lines)
        assert service.process.wait(60) == 0
        (trace,) = by_trace(service.collector.spans()).values()
    assert any('"code":"draining"' in line for line in rest)
    assert_whole(trace)
    (server,) = [span for span in trace if span["name"] == SERVER]
    assert attributes(server)["error.type"] == "draining"


def test_a_replica_that_is_told_to_end_exports_first(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        service.ask(chat("hello", max_tokens=20))
        children = psutil.Process(service.process.pid).children(recursive=True)
        (worker,) = [child for child in children if ":endpoint-phone" in " ".join(child.cmdline())]
        worker.terminate()
        worker.wait(60)
        deadline = time.monotonic() + 10
        while not any(span["service"] == "disco-endpoint-phone" for span in service.collector.spans()):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        service.stop()
