"""Who owns tracing, what is sampled, and how a trace gets from one process to another."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from serve_app import telemetry as telemetry_module
from serve_app.core.legs import Leg, LegOutcome, LegReason
from serve_app.core.model import EndpointInfo, EndpointKind, GenerationRequest, Sampling, TextPrompt
from serve_app.router_spans import RequestSpan, ServerSpan
from serve_app.settings import TelemetrySettings
from serve_app.streams import Outcome, Usage
from serve_app.telemetry import Telemetry, TwoOwners
from serve_app.worker_spans import EngineSpan
from tests.http.fakes import CHAT, REPORT

OUTCOME = Outcome("stop", Usage(5, 2, True), REPORT)
PARENT = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
UNSAMPLED = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"}


def recorder(sampling: float = 1.0) -> tuple[Telemetry, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    return Telemetry(TelemetrySettings(sampling=sampling), "router", exporter), exporter


def finished(telemetry: Telemetry, exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    telemetry.shutdown()
    spans = exporter.get_finished_spans()
    named = {span.name: span for span in spans}
    assert len(named) == len(spans)
    return named


def leg(attempt: str, endpoint: str = "phone") -> Leg:
    return Leg(attempt, EndpointInfo(endpoint, EndpointKind.DEVICE, "smol", 512), LegReason.DISPATCH, 1.0)


def begin(telemetry: Telemetry, model: str, carrier: dict[str, str] | None = None) -> RequestSpan:
    return RequestSpan(telemetry, carrier or {}, "r1", model, "chat", 1.0)


def end(span: RequestSpan, code: str = "ok") -> None:
    span.end(OUTCOME, code, None, (), 2.0)


def test_one_request_over_router_and_worker_is_one_trace() -> None:
    router, router_spans = recorder()
    worker, worker_spans = recorder()
    server = ServerSpan(router, PARENT, CHAT, "r1", 1.0)
    request = begin(router, "disco", server.carrier)
    call = leg("r1-0-phone")
    carrier = request.leg_started(call)
    EngineSpan(worker, GenerationRequest(call.attempt, TextPrompt(""), Sampling(3), trace=carrier), "phone", 1.0).end(
        None, 2.0
    )
    call.end(LegOutcome.COMPLETED, 2.0)
    request.leg_ended(call, call, REPORT["legs"][1], 2.0)
    end(request)
    server.end(200, "ok", 2.0)

    spans = finished(router, router_spans) | finished(worker, worker_spans)
    way = ["POST " + CHAT, "chat disco", "chat phone", "generate phone", "queue"]
    ids = [0xB7AD6B7169203331, *(spans[name].get_span_context().span_id for name in way)]
    assert [spans[name].parent.span_id for name in way] == ids[:-1]  # type: ignore[union-attr]
    traces = {span.get_span_context().trace_id for span in spans.values()}
    assert [f"{trace_id:032x}" for trace_id in traces] == ["0af7651916cd43dd8448eb211c80319c"]
    kinds = [SpanKind.SERVER, SpanKind.INTERNAL, SpanKind.CLIENT, SpanKind.SERVER, SpanKind.INTERNAL]
    assert [spans[name].kind for name in way] == kinds
    assert spans["chat disco"].resource.attributes["service.name"] == "router"


def test_the_callers_decision_to_sample_counts_before_our_rate() -> None:
    telemetry, exporter = recorder(sampling=0.0)
    end(begin(telemetry, "none"))
    end(begin(telemetry, "kept", PARENT))
    assert set(finished(telemetry, exporter)) == {"chat kept"}

    telemetry, exporter = recorder(sampling=1.0)
    end(begin(telemetry, "none", UNSAMPLED))
    assert not finished(telemetry, exporter)


def test_a_share_of_the_requests_is_traced() -> None:
    telemetry, exporter = recorder(sampling=0.5)
    for _ in range(400):
        end(begin(telemetry, "disco"))
    telemetry.shutdown()
    assert 100 < len(exporter.get_finished_spans()) < 300


def test_a_broken_trace_header_starts_a_new_trace() -> None:
    telemetry, exporter = recorder()
    end(begin(telemetry, "disco", {"traceparent": "nonsense", "tracestate": "=,="}))

    assert finished(telemetry, exporter)["chat disco"].parent is None


def test_without_an_exporter_nothing_is_recorded_but_the_callers_context_passes_through() -> None:
    telemetry = Telemetry(TelemetrySettings(), "router")
    server = ServerSpan(telemetry, PARENT, CHAT, "r1", 1.0)
    request = begin(telemetry, "disco", server.carrier)

    assert request.leg_started(leg("r1-0-phone")) == PARENT
    end(request)
    telemetry.shutdown()


def test_no_provider_is_made_global() -> None:
    before = trace.get_tracer_provider()
    telemetry, _ = recorder()
    assert trace.get_tracer_provider() is before
    telemetry.shutdown()


@contextlib.contextmanager
def serve_traces(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """As in a replica of a Serve whose ``tracing_config`` is on, which sets the global provider."""
    provider, exporter = TracerProvider(shutdown_on_exit=False), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(telemetry_module.trace, "get_tracer_provider", lambda: provider)
    yield exporter
    provider.shutdown()


def test_where_serve_traces_its_provider_gets_our_spans_under_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_traces(monkeypatch) as exporter:
        telemetry = Telemetry(TelemetrySettings(), "router")
        with trace.get_tracer_provider().get_tracer("serve").start_as_current_span("replica_handle_request"):
            server = ServerSpan(telemetry, PARENT, CHAT, "r1", 1.0)
        server.end(200, "ok", 2.0)
        telemetry.shutdown()
        ambient, ours = exporter.get_finished_spans()
        assert ours.parent == ambient.get_span_context()


def test_two_owners_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_traces(monkeypatch), pytest.raises(TwoOwners, match=r"telemetry\.otlp_endpoint and .*tracing_config"):
        Telemetry(TelemetrySettings(otlp_endpoint="http://127.0.0.1:4318"), "router")


def test_spans_of_streams_that_alternate_keep_their_own_parents() -> None:
    telemetry, exporter = recorder()

    async def stream(model: str) -> AsyncGenerator[None, None]:
        request, call = begin(telemetry, model), leg(model, f"at-{model}")
        request.leg_started(call)
        try:
            while True:
                assert not trace.get_current_span().get_span_context().is_valid
                yield
        finally:
            request.leg_ended(call, None, REPORT["legs"][1], 2.0)
            end(request, "cancelled")

    async def scenario() -> None:
        streams = [stream(f"s{i}") for i in range(5)]
        for _ in range(3):
            for one in streams:
                await anext(one)
        # Closed by other tasks than the ones that read them, as a cancelled response is.
        await asyncio.gather(*(asyncio.create_task(one.aclose()) for one in streams))

    asyncio.run(scenario())
    spans = finished(telemetry, exporter)
    assert len(spans) == 10
    for i in range(5):
        assert spans[f"chat at-s{i}"].parent == spans[f"chat s{i}"].get_span_context()


class FailingExporter(SpanExporter):
    """A collector that is not there."""

    def export(self, spans: object) -> Any:
        raise ConnectionError

    def shutdown(self) -> None:
        pass


def test_a_missing_collector_disturbs_nobody() -> None:
    telemetry = Telemetry(TelemetrySettings(), "router", FailingExporter())
    end(begin(telemetry, "disco"))
    telemetry.shutdown()
    telemetry.shutdown()


EXITS = """
import sys
from opentelemetry.sdk.trace.export import ConsoleSpanExporter
from serve_app.router_spans import ServerSpan
from serve_app.settings import TelemetrySettings
from serve_app.telemetry import Telemetry

telemetry = Telemetry(TelemetrySettings(), "router", ConsoleSpanExporter())
ServerSpan(telemetry, {}, "/v1/x", "r1", 1.0).end(200, "ok", 2.0)
sys.exit(1)
"""


def test_a_process_that_exits_exports_first() -> None:
    shown = subprocess.run([sys.executable, "-c", EXITS], capture_output=True, text=True, check=False)
    assert '"name": "POST /v1/x"' in shown.stdout


class HangingExporter(SpanExporter):
    """A collector that takes spans and never says so."""

    def __init__(self) -> None:
        self.asked, self.answer = threading.Event(), threading.Event()

    def export(self, spans: object) -> Any:
        self.asked.set()
        self.answer.wait()
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        pass


def test_a_collector_that_hangs_does_not_keep_a_process_from_its_end() -> None:
    exporter = HangingExporter()
    telemetry = Telemetry(TelemetrySettings(), "router", exporter)
    end(begin(telemetry, "disco"))
    telemetry.shutdown(patience=0.1)
    assert exporter.asked.wait(20)
    exporter.answer.set()
