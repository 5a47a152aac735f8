"""Spans: one for the request, one for each leg, one for the engine's work on a leg; none per token.

They are started and ended explicitly and never become the ambient context, which a cancelled generator would leave
behind in the wrong task. Attribute names follow OpenTelemetry's GenAI conventions; ours are under ``disco.*``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from serve_app.core.model import EndpointInfo
from serve_app.settings import TelemetrySettings
from serve_app.streams import Outcome

#: GenAI conventions' names of the two calls.
Operation: TypeAlias = Literal["chat", "text_completion"]

_PROPAGATOR = TraceContextTextMapPropagator()
#: Milliseconds that a finished span waits for company before it is exported.
_EXPORT_DELAY = 500


class Telemetry:
    """Owns the process's only TracerProvider, without making it global. Without an exporter no span is recorded."""

    def __init__(self, settings: TelemetrySettings, service: str, exporter: SpanExporter | None = None) -> None:
        exporter = exporter or _exporter(settings)
        self._provider: TracerProvider | None = None
        tracer: trace.Tracer = trace.NoOpTracer()
        if exporter is not None:
            self._provider = TracerProvider(
                sampler=ParentBased(TraceIdRatioBased(settings.sampling)),
                resource=Resource.create({"service.name": service}),
                shutdown_on_exit=False,
            )
            self._provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=_EXPORT_DELAY))
            tracer = self._provider.get_tracer("disco-serve")
        self._tracer = tracer

    def start_request(
        self,
        carrier: Mapping[str, str],
        request_id: str,
        model: str,
        key: str | None = None,
        operation: Operation = "chat",
    ) -> RequestSpan:
        """``carrier`` holds the client's W3C trace context, if it sent one. ``key``: the name of the caller's."""
        attributes = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "disco",
            "gen_ai.request.model": model,
            "disco.request_id": request_id,
        }
        if key is not None:
            attributes["disco.key"] = key
        parent = _PROPAGATOR.extract(dict(carrier), otel_context.Context())
        span = self._tracer.start_span(f"{operation} {model}", parent, SpanKind.SERVER, attributes)
        return RequestSpan(self._tracer, span, operation)

    def start_worker(self, carrier: Mapping[str, str], endpoint: str, attempt: str) -> Span:
        """The engine's work on one leg, in the actor's own process. The caller ends it."""
        parent = _PROPAGATOR.extract(dict(carrier), otel_context.Context())
        attributes = {"disco.endpoint": endpoint, "disco.attempt": attempt}
        return self._tracer.start_span(f"generate {endpoint}", parent, SpanKind.SERVER, attributes)

    def shutdown(self) -> None:
        """Export what is finished; blocks for as long as the exporter needs."""
        if self._provider is not None:
            self._provider.shutdown()


class RequestSpan:
    """The router's span of one request."""

    def __init__(self, tracer: trace.Tracer, span: Span, operation: Operation) -> None:
        self._tracer = tracer
        self._span = span
        self._operation = operation

    def start_leg(self, attempt: str, info: EndpointInfo, reason: str) -> LegSpan:
        parent = trace.set_span_in_context(self._span, otel_context.Context())
        attributes = {
            "gen_ai.operation.name": self._operation,
            "gen_ai.provider.name": "disco",
            "gen_ai.request.model": info.model,
            "disco.endpoint": info.id,
            "disco.endpoint.kind": info.kind.value,
            "disco.attempt": attempt,
            "disco.leg.reason": reason,
        }
        return LegSpan(self._tracer.start_span(f"{self._operation} {info.id}", parent, SpanKind.CLIENT, attributes))

    def end(self, outcome: Outcome, error: str | None) -> None:
        """``error``: a stable code, never a message."""
        report = outcome.report
        self._span.set_attribute("disco.policy", report["policy"])
        self._span.set_attribute("disco.eligible", report["eligible"])
        self._span.set_attribute("disco.hedge", report["hedge"])
        self._span.set_attribute("disco.migrations", len(report["migrations"]))
        self._span.set_attribute("disco.cost_usd", report["cost_usd"])
        if report["ttft_s"] is not None:
            self._span.set_attribute("gen_ai.response.time_to_first_chunk", report["ttft_s"])
        _end(self._span, outcome.usage.prompt_tokens, outcome.usage.completion_tokens, error)


class LegSpan:
    """The router's span of one call to an endpoint."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def inject(self) -> dict[str, str]:
        """The W3C carrier that makes the endpoint's span a child of this one."""
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, trace.set_span_in_context(self._span, otel_context.Context()))
        return carrier

    def end(self, report: Mapping[str, Any]) -> None:
        """``report``: the leg's part of the request's report."""
        self._span.set_attribute("disco.leg.outcome", report["outcome"])
        self._span.set_attribute("disco.cost_usd", report["cost_usd"])
        if report["ttft_s"] is not None:
            self._span.set_attribute("gen_ai.response.time_to_first_chunk", report["ttft_s"])
        _end(self._span, report["prefill_tokens"], report["tokens"], report["error"])


def _end(span: Span, input_tokens: int, output_tokens: int, error: str | None) -> None:
    span.set_attribute("gen_ai.usage.input_tokens", input_tokens)
    span.set_attribute("gen_ai.usage.output_tokens", output_tokens)
    if error is not None:
        span.set_attribute("error.type", error)
        span.set_status(Status(StatusCode.ERROR))
    span.end()


def _exporter(settings: TelemetrySettings) -> SpanExporter | None:
    if settings.otlp_endpoint is None:
        return None
    if settings.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return GrpcExporter(endpoint=settings.otlp_endpoint, insecure=settings.otlp_endpoint.startswith("http://"))
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

    return HttpExporter(endpoint=f"{settings.otlp_endpoint.rstrip('/')}/v1/traces")
