"""docs/traces/migration.otlp.json: a real answer that moved, in the form that Jaeger's upload takes."""

from __future__ import annotations

import base64
import json
import re
import socket
from pathlib import Path
from typing import Any

from google.protobuf.json_format import ParseDict
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from benchmarks.collector import attributes
from benchmarks.trace import waterfall

FILE = Path(__file__).parents[1] / "docs" / "traces" / "migration.otlp.json"
TEXT = FILE.read_text("utf-8")
TRACE: dict[str, Any] = json.loads(TEXT)
SPANS = [
    span | {"service": attributes(resource["resource"])["service.name"]}
    for resource in TRACE["resourceSpans"]
    for scope in resource["scopeSpans"]
    for span in scope["spans"]
]


def test_it_is_one_trace_in_otlps_json() -> None:
    assert list(TRACE) == ["resourceSpans"]
    assert all(re.fullmatch("[0-9a-f]{32}", span["traceId"]) for span in SPANS)
    assert all(re.fullmatch("[0-9a-f]{16}", span["spanId"]) for span in SPANS)
    assert len({span["traceId"] for span in SPANS}) == 1
    known = {span["spanId"] for span in SPANS}
    (root,) = [span for span in SPANS if span.get("parentSpanId") not in known]
    assert root["name"] == "POST /v1/chat/completions"


def test_every_field_is_one_of_the_protocols() -> None:
    def with_bytes(value: Any) -> Any:
        """Protobuf's own JSON wants ids in base64."""
        if isinstance(value, list):
            return [with_bytes(part) for part in value]
        if not isinstance(value, dict):
            return value
        ids = ("traceId", "spanId", "parentSpanId")
        return {k: base64.b64encode(bytes.fromhex(v)).decode() if k in ids else with_bytes(v) for k, v in value.items()}

    parsed = ParseDict(with_bytes(TRACE), TracesData())
    assert sum(len(scope.spans) for resource in parsed.resource_spans for scope in resource.scope_spans) == len(SPANS)


def test_it_shows_a_race_and_a_handoff_of_a_real_model() -> None:
    by_name = {span["name"]: attributes(span) for span in SPANS}
    assert by_name["handoff"]["disco.handoff.outcome"] == "completed"
    assert by_name["chat disco"]["disco.hedge"] == "race"
    models = {attributes(span).get("gen_ai.request.model") for span in SPANS if span["name"].startswith("generate ")}
    assert {str(model).lower()[:21] for model in models} == {"smollm2-135m-instruct"}
    assert {span["service"] for span in SPANS} == {"disco-router", "disco-endpoint-cloud", "disco-endpoint-phone"}


def test_the_walk_through_shows_this_file() -> None:
    page = (FILE.parents[1] / "tracing.md").read_text("utf-8")
    assert "\n".join(waterfall(TRACE)) in page
    by_name = {span["name"]: attributes(span) for span in SPANS}
    told = by_name["chat disco"] | by_name["handoff"]
    table = page[page.index("| attribute of `chat disco`") :]
    shown = re.findall(r"^\| `([\w.]+)` \| `([^`]+)` \|", table, re.MULTILINE)
    assert shown
    for name, figure in shown:
        assert figure == (f"{told[name]:.4g}" if isinstance(told[name], float) else str(told[name])), name


def test_it_is_small_and_tells_nothing_of_the_machine_or_the_text() -> None:
    assert len(TEXT) < 100_000
    assert "Tell me" not in TEXT
    assert socket.gethostname() not in TEXT
    assert not re.search(r'"/(?!v1/)', TEXT), "no path but the API's"
