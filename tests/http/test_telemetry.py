from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from serve_app.core.model import EndpointInfo, EndpointKind
from serve_app.settings import TelemetrySettings
from serve_app.streams import Outcome, Usage
from serve_app.telemetry import Telemetry
from tests.http.fakes import REPORT

INFO = EndpointInfo("phone", EndpointKind.DEVICE, "smol", 512)
OUTCOME = Outcome("stop", Usage(5, 2, True), REPORT)
LEG = REPORT["legs"][1]
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


def test_one_request_over_router_and_worker_is_one_trace() -> None:
    router, router_spans = recorder()
    worker, worker_spans = recorder()
    request = router.start_request(PARENT, "r1", "disco")
    leg = request.start_leg("r1-1-phone", INFO, "dispatch")
    worker.start_worker(leg.inject(), "phone", "r1-1-phone").end()
    leg.end(LEG)
    request.end(OUTCOME, None)

    spans = finished(router, router_spans) | finished(worker, worker_spans)
    root, call, work = spans["chat disco"], spans["chat phone"], spans["generate phone"]
    assert root.parent is not None
    assert f"{root.parent.span_id:016x}" == "b7ad6b7169203331"
    assert call.parent == root.get_span_context()
    assert work.parent is not None
    assert call.context is not None
    assert work.parent.span_id == call.context.span_id
    traces = {span.context.trace_id for span in spans.values() if span.context}
    assert [f"{trace_id:032x}" for trace_id in traces] == ["0af7651916cd43dd8448eb211c80319c"]
    assert (root.kind, call.kind, work.kind) == (SpanKind.SERVER, SpanKind.CLIENT, SpanKind.SERVER)


def test_attributes_follow_the_genai_conventions() -> None:
    telemetry, exporter = recorder()
    request = telemetry.start_request({}, "r1", "disco")
    request.start_leg("r1-1-phone", INFO, "hedge").end(LEG)
    request.end(OUTCOME, None)

    spans = finished(telemetry, exporter)
    root, leg = dict(spans["chat disco"].attributes or {}), dict(spans["chat phone"].attributes or {})
    assert root["gen_ai.operation.name"] == "chat"
    assert root["gen_ai.request.model"] == "disco"
    assert root["gen_ai.usage.input_tokens"] == 5
    assert root["gen_ai.usage.output_tokens"] == 2
    assert root["gen_ai.response.time_to_first_chunk"] == 0.5
    assert (root["disco.policy"], root["disco.hedge"], root["disco.migrations"]) == ("disco-d", "fired", 1)
    assert leg["gen_ai.request.model"] == "smol"
    assert leg["disco.endpoint.kind"] == "device"
    assert (leg["disco.leg.reason"], leg["disco.leg.outcome"]) == ("hedge", "completed")
    assert "error.type" not in root
    assert spans["chat disco"].resource.attributes["service.name"] == "router"


def test_an_error_is_told_by_its_code() -> None:
    telemetry, exporter = recorder()
    telemetry.start_request({}, "r1", "disco").end(OUTCOME, "endpoint_timeout")

    span = finished(telemetry, exporter)["chat disco"]
    assert dict(span.attributes or {})["error.type"] == "endpoint_timeout"
    assert span.status.status_code is StatusCode.ERROR
    assert span.events == ()


def test_the_callers_decision_to_sample_counts_before_our_rate() -> None:
    telemetry, exporter = recorder(sampling=0.0)
    telemetry.start_request({}, "r1", "none").end(OUTCOME, None)
    telemetry.start_request(PARENT, "r2", "kept").end(OUTCOME, None)
    assert set(finished(telemetry, exporter)) == {"chat kept"}

    telemetry, exporter = recorder(sampling=1.0)
    telemetry.start_request(UNSAMPLED, "r3", "none").end(OUTCOME, None)
    assert not finished(telemetry, exporter)


def test_a_broken_trace_header_starts_a_new_trace() -> None:
    telemetry, exporter = recorder()
    telemetry.start_request({"traceparent": "nonsense", "tracestate": "=,="}, "r1", "disco").end(OUTCOME, None)

    assert finished(telemetry, exporter)["chat disco"].parent is None


def test_without_an_exporter_nothing_is_recorded_but_the_callers_context_passes_through() -> None:
    telemetry = Telemetry(TelemetrySettings(), "router")
    request = telemetry.start_request(PARENT, "r1", "disco")
    leg = request.start_leg("r1-1-phone", INFO, "dispatch")

    assert leg.inject() == PARENT
    leg.end(LEG)
    request.end(OUTCOME, None)
    telemetry.shutdown()


def test_no_provider_is_made_global() -> None:
    before = trace.get_tracer_provider()
    telemetry, _ = recorder()
    assert trace.get_tracer_provider() is before
    telemetry.shutdown()


def test_spans_of_streams_that_alternate_keep_their_own_parents() -> None:
    telemetry, exporter = recorder()

    async def stream(model: str) -> AsyncGenerator[None, None]:
        request = telemetry.start_request({}, model, model)
        leg = request.start_leg(model, EndpointInfo(f"at-{model}", EndpointKind.CLOUD, "m", 1), "dispatch")
        try:
            while True:
                assert not trace.get_current_span().get_span_context().is_valid
                yield
        finally:
            leg.end(LEG)
            request.end(OUTCOME, "cancelled")

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

    def export(self, spans: object) -> None:  # type: ignore[override]
        raise ConnectionError

    def shutdown(self) -> None:
        pass


def test_a_missing_collector_disturbs_nobody() -> None:
    telemetry = Telemetry(TelemetrySettings(), "router", FailingExporter())
    telemetry.start_request({}, "r1", "disco").end(OUTCOME, None)
    telemetry.shutdown()
