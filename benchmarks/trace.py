"""The trace of one answer of a real model that moved, as a file that Jaeger's upload takes.

    python -m benchmarks.trace docs/traces/migration.otlp.json

The shipped configuration `disco` answers questions until one of its streams has moved; that request's trace is written.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console

from benchmarks.collector import Collector, attributes, collecting
from benchmarks.processes import Server, python
from benchmarks.regimes import TOPICS
from benchmarks.stack import free_ports, mode_environment, write_configuration
from serve_app.cli import ready
from serve_app.cli.configfile import load
from serve_app.settings import TelemetrySettings

#: Seconds within which the last spans arrive.
_PATIENCE = 20.0

#: Columns of a waterfall's longest bar.
_BAR = 40


@contextmanager
def serving(otlp_endpoint: str, directory: Path) -> Iterator[str]:
    """The URL of the configuration `disco`, with a budget that lets every request race."""
    configuration = load("disco")
    app = configuration.app.model_copy(update={"telemetry": TelemetrySettings(otlp_endpoint=otlp_endpoint)})
    policy = configuration.live.policy.model_copy(update={"budget": 1.0})
    live = configuration.live.model_copy(update={"policy": policy})
    (port,) = free_ports(1)
    file = directory / "traced.yaml"
    write_configuration(file, port, app, live)
    environment = mode_environment(directory, haproxy=False)
    server = Server(python("benchmarks.stack", str(file)), environment, directory / "traced.log")
    url = ready.base_url("127.0.0.1", port)
    try:
        server.wait_until(lambda: (state := ready.ask(url)) is not None and state.ready and not state.waiting)
        yield url
    finally:
        server.end()


def ask_until_moved(url: str) -> tuple[str, dict[str, Any]]:
    """The trace id and the report of the first stream with a complete planned move."""
    return asyncio.run(_ask_until_moved(url))


async def _ask_until_moved(url: str) -> tuple[str, dict[str, Any]]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as http:
        for topic in TOPICS:
            trace_id = secrets.token_hex(16)
            body = {
                "model": "disco",
                "max_tokens": 48,
                "temperature": 0,
                "disco": {"report": True},
                "messages": [{"role": "user", "content": f"Tell me about {topic}."}],
            }
            headers = {"traceparent": f"00-{trace_id}-{secrets.token_hex(8)}-01"}
            async with http.post(f"{url}/v1/chat/completions", json=body, headers=headers) as response:
                response.raise_for_status()
                report = (await response.json())["disco"]
            if any(move["reason"] == "migration" and move["outcome"] == "completed" for move in report["migrations"]):
                return trace_id, report
    raise RuntimeError("no stream moved: is this machine so busy that the phone never came first?")


def trace_of(collector: Collector, trace_id: str, engines: int) -> dict[str, Any]:
    """OTLP's JSON of one trace, once its HTTP call and the spans of so many ``engines`` are there."""

    def whole() -> bool:
        spans = [span for span in collector.spans() if span["traceId"] == trace_id]
        names = [span["name"].split()[0] for span in spans]
        return "POST" in names and names.count("generate") >= engines

    _wait(whole)
    merged: dict[str, dict[str, Any]] = {}
    for resource in collector.resource_spans():
        spans = [span for scope in resource["scopeSpans"] for span in scope["spans"] if span["traceId"] == trace_id]
        if spans:
            service = attributes(resource["resource"])["service.name"]
            kept = merged.setdefault(service, resource | {"scopeSpans": [resource["scopeSpans"][0] | {"spans": []}]})
            kept["scopeSpans"][0]["spans"] += spans
    return {"resourceSpans": list(merged.values())}


def waterfall(trace: dict[str, Any]) -> list[str]:
    """The trace as lines of text: name, process, start and end in seconds, and a bar between them."""
    spans = [
        span | {"service": attributes(resource["resource"])["service.name"].removeprefix("disco-")}
        for resource in trace["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]
    known = {span["spanId"] for span in spans}
    first = min(int(span["startTimeUnixNano"]) for span in spans)
    last = max(int(span["endTimeUnixNano"]) for span in spans)
    children: dict[str, list[dict[str, Any]]] = {}
    for span in sorted(spans, key=lambda span: (int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"]))):
        parent = span.get("parentSpanId", "")
        children.setdefault(parent if parent in known else "", []).append(span)

    def lines(parent: str, depth: int) -> Iterator[str]:
        for span in children.get(parent, ()):
            start, end = int(span["startTimeUnixNano"]) - first, int(span["endTimeUnixNano"]) - first
            left = start * _BAR // (last - first)
            bar = " " * left + "█" * max(1, end * _BAR // (last - first) - left)
            name = "  " * depth + span["name"]
            yield f"{name:29}{span['service']:15}{start / 1e9:6.3f}{end / 1e9:7.3f}  {bar}".rstrip()
            yield from lines(span["spanId"], depth + 1)

    return list(lines("", 0))


def _wait(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + _PATIENCE
    while not condition():
        if time.monotonic() > give_up:
            raise RuntimeError("the trace never became complete")
        time.sleep(0.1)


def record(directory: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The trace, and the report of the same request."""
    with collecting(directory / "spans") as collector:
        with serving(collector.http, directory) as url:
            trace_id, report = ask_until_moved(url)
        return trace_of(collector, trace_id, len(report["legs"])), report


def main(path: str) -> None:
    with tempfile.TemporaryDirectory(prefix="disco-trace-") as directory:
        trace, report = record(Path(directory))
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(trace, indent=1) + "\n", "utf-8")
    console = Console(highlight=False, soft_wrap=True)
    console.print("\n".join(waterfall(trace)))
    console.print(f"{path}: the first token came after {report['ttft_s']} s from {report['winner']}")


if __name__ == "__main__":
    main(sys.argv[1])
