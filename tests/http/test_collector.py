"""Spans on the wire: both protocols of OTLP, to a collector that is a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from benchmarks.collector import attributes, collecting
from serve_app.router_spans import ServerSpan
from serve_app.settings import TelemetrySettings
from serve_app.telemetry import Telemetry


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_spans_arrive_over_both_protocols(protocol: Literal["http", "grpc"], tmp_path: Path) -> None:
    with collecting(tmp_path / "spans") as collector:
        telemetry = Telemetry(
            TelemetrySettings(otlp_endpoint=getattr(collector, protocol), protocol=protocol), "disco-router"
        )
        trace_id = "0af7651916cd43dd8448eb211c80319c"
        span = ServerSpan(telemetry, {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}, "/v1/x", "r1", 1.0)
        span.first_token_delivered(1.0, 1.5)
        span.end(200, "ok", 2.0)
        telemetry.shutdown()
        (arrived,) = collector.spans()
    assert (arrived["traceId"], arrived["parentSpanId"]) == (trace_id, "b7ad6b7169203331")
    assert arrived["service"] == "disco-router"
    assert int(arrived["endTimeUnixNano"]) - int(arrived["startTimeUnixNano"]) == pytest.approx(1e9)
    assert attributes(arrived)["disco.time_to_first_token_delivered"] == 0.5
    assert [event["name"] for event in arrived["events"]] == ["disco.first_token.delivered"]
