"""A service over real replicas in this process, and all the spans that they make."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from serve_app.gauges import watch_buffers, watch_state
from serve_app.ingress import Surface, build_http_app
from serve_app.settings import TelemetrySettings
from serve_app.telemetry import Telemetry
from tests.support.local_service import LocalService, local_service
from tests.support.scripted_service import Asking


class TracedService(Asking):
    """Router and replicas each have a tracer of their own, as in processes of their own."""

    def __init__(self, local: LocalService, sampling: float = 1.0) -> None:
        self.local = local
        settings = TelemetrySettings(sampling=sampling)
        replicas = {f"disco-endpoint-{name}": endpoint.replica for name, endpoint in local.endpoints.items()}
        services = ("disco-router", *replicas)
        self._exporters = [InMemorySpanExporter() for _ in services]
        self.telemetries = [
            Telemetry(settings, name, exporter) for name, exporter in zip(services, self._exporters, strict=True)
        ]
        router, *others = self.telemetries
        local.service._telemetry = router
        for replica, telemetry in zip(replicas.values(), others, strict=True):
            replica._telemetry = telemetry
        self.surface = Surface(local.service, local.app, lambda: local.live, lambda: "127.0.0.1", router)  # type: ignore[arg-type]
        watch_state(self.surface.metrics, local.service._state)
        watch_buffers(self.surface.metrics, local.service.buffers)
        self.http = build_http_app(self.surface)

    @classmethod
    async def start(cls, args: dict[str, Any], live: dict[str, Any], **settings: Any) -> TracedService:
        return cls(await local_service(args, live), **settings)

    def spans(self) -> Trace:
        """Ends the tracers."""
        for telemetry in self.telemetries:
            telemetry.shutdown()
        spans = [span for exporter in self._exporters for span in exporter.get_finished_spans()]
        for span in spans:
            for holder in (span, *span.events, *span.links):
                for name, value in (holder.attributes or {}).items():
                    assert _has_a_form_in_otlp(value), f"{name} of {span.name}: {value!r}"
        return Trace(spans)


@dataclass
class Trace:
    spans: list[ReadableSpan]
    by_id: dict[int, ReadableSpan] = field(init=False)

    def __post_init__(self) -> None:
        self.by_id = {span.get_span_context().span_id: span for span in self.spans}

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    def children(self, span: ReadableSpan) -> list[ReadableSpan]:
        mine = span.get_span_context().span_id
        return [child for child in self.spans if child.parent is not None and child.parent.span_id == mine]

    def traces(self) -> dict[int, list[ReadableSpan]]:
        """By trace id."""
        found: dict[int, list[ReadableSpan]] = {}
        for span in self.spans:
            found.setdefault(span.get_span_context().trace_id, []).append(span)
        return found


def _has_a_form_in_otlp(value: Any) -> bool:
    values = value if isinstance(value, list | tuple) else [value]
    return len({type(each) for each in values}) <= 1 and all(
        isinstance(each, str | bool | int | float) for each in values
    )


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def event(span: ReadableSpan, name: str) -> Any:
    """The only event of that name."""
    (found,) = [event for event in span.events if event.name == name]
    return found


def seconds(span: ReadableSpan) -> float:
    assert span.end_time is not None
    assert span.start_time is not None
    return (span.end_time - span.start_time) / 1e9


def names(spans: Iterable[ReadableSpan]) -> list[str]:
    return sorted(span.name for span in spans)
