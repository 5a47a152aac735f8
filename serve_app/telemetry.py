"""Who owns tracing in a process, and how its spans leave it.

Spans are started and ended explicitly, with times of the event loop's clock, and never become the ambient context,
which a cancelled generator would leave behind in the wrong task. ``router_spans`` and ``worker_spans`` make them.
"""

from __future__ import annotations

import atexit
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Literal, TypeAlias

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
from opentelemetry.trace import NonRecordingSpan, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from serve_app.core.model import ChatPrompt, Prompt
from serve_app.settings import TelemetrySettings
from serve_app.spans import SCOPE, AnySpan, AnyTracer, Recorder

#: GenAI conventions' names of the two calls.
Operation: TypeAlias = Literal["chat", "text_completion"]

#: GenAI conventions' ``gen_ai.provider.name`` of whatever answers through this service.
PROVIDER = "disco"

_PROPAGATOR = TraceContextTextMapPropagator()
#: Milliseconds that a finished span waits for company before it is exported.
_EXPORT_DELAY = 500
#: Seconds that the end of a process waits for its last spans to be exported.
LAST_WORDS = 3.0
#: Finished spans that wait for a slow collector. More are dropped.
_QUEUE = 16_384


class TwoOwners(ValueError):
    """Tracing is configured twice, so that spans of one request would go to different places."""


class Telemetry:
    """The process's tracer: our own, never made global; or Serve's, where its ``tracing_config`` is on and ours is not.

    Without either no span is recorded, but the client's trace context still travels. Raises ``TwoOwners`` for both.
    """

    def __init__(self, settings: TelemetrySettings, service: str, exporter: SpanExporter | None = None) -> None:
        exporter = exporter or _exporter(settings)
        serves = trace.get_tracer_provider()
        self._stop: Callable[[], None] | None = None
        #: The ambient span is Serve's, and ours belong under it.
        self.joins_ambient = isinstance(serves, TracerProvider)
        if exporter is None:
            self.tracer: AnyTracer = serves.get_tracer(SCOPE) if self.joins_ambient else trace.NoOpTracer()
            return
        if self.joins_ambient:
            raise TwoOwners(
                "telemetry.otlp_endpoint and Serve's tracing_config are both on; remove one of them, "
                "for instance set tracing_config.enabled to false"
            )
        attributes = {
            "service.name": service,
            "service.namespace": "disco",
            "service.version": _version(),
            "service.instance.id": str(uuid.uuid4()),
        }
        processor = BatchSpanProcessor(exporter, max_queue_size=_QUEUE, schedule_delay_millis=_EXPORT_DELAY)
        self._stop = processor.shutdown
        self.tracer = Recorder(processor.on_end, TraceIdRatioBased(settings.sampling), Resource.create(attributes))
        # A replica that gets a SIGTERM of its own leaves by Python's exit, and nobody calls it before.
        atexit.register(self.shutdown)

    def shutdown(self, patience: float = LAST_WORDS) -> None:
        """Export what is finished; blocks until that is done, but not for a collector that hangs. Idempotent.

        patience: seconds.
        """
        if self._stop is None:
            return
        stop, self._stop = self._stop, None
        atexit.unregister(self.shutdown)
        last = threading.Thread(target=stop, name="last spans", daemon=True)
        try:
            last.start()
        except RuntimeError:
            # Some versions of Python start no thread while they exit.
            stop()
        else:
            last.join(patience)


class SpanClock:
    """Turns seconds of the event loop's clock into the nanoseconds since 1970 in which OpenTelemetry counts.

    ``now``: the loop's time at this moment.
    """

    __slots__ = ("_epoch",)

    def __init__(self, now: float) -> None:
        self._epoch = time.time_ns() - round(now * 1e9)

    def at(self, seconds: float) -> int:
        return self._epoch + round(seconds * 1e9)


def operation_of(prompt: Prompt) -> Operation:
    return "chat" if isinstance(prompt, ChatPrompt) else "text_completion"


def context_of(span: AnySpan) -> otel_context.Context:
    """A context of this span alone, for its children."""
    return trace.set_span_in_context(NonRecordingSpan(span.get_span_context()), otel_context.Context())


def context_from(carrier: Mapping[str, str]) -> otel_context.Context:
    """What another process says in W3C headers, and nothing of this one's."""
    return _PROPAGATOR.extract(dict(carrier), otel_context.Context())


def carrier_of(span: AnySpan) -> dict[str, str]:
    """The W3C headers that make another process's span a child of this one."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, context_of(span))
    return carrier


def mark_error(span: AnySpan, code: str) -> None:
    """``code``: stable, never a message."""
    span.set_attribute("error.type", code)
    span.set_status(Status(StatusCode.ERROR))


def _version() -> str:
    try:
        return version("disco-serve")
    except PackageNotFoundError:
        return "not installed"


def _exporter(settings: TelemetrySettings) -> SpanExporter | None:
    if settings.otlp_endpoint is None:
        return None
    if settings.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return GrpcExporter(endpoint=settings.otlp_endpoint, insecure=settings.otlp_endpoint.startswith("http://"))
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

    return HttpExporter(endpoint=f"{settings.otlp_endpoint.rstrip('/')}/v1/traces")
