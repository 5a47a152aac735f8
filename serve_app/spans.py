"""Spans that cost little before the first token: without the SDK's locks, limits and copies.

A request has few spans, all of them made and ended by one event loop, with attributes of this project's own. What
travels and what is exported is the SDK's: contexts, samplers, and finished spans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision, Sampler
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, Status, TraceFlags
from opentelemetry.util.types import Attributes, AttributeValue

SCOPE = "disco-serve"


class AnySpan(Protocol):
    """Ours, the SDK's, or one that only carries a context. Times are nanoseconds since 1970."""

    def get_span_context(self) -> SpanContext: ...

    def set_attribute(self, key: str, value: AttributeValue) -> None: ...

    def set_attributes(self, attributes: Mapping[str, AttributeValue]) -> None: ...

    def add_event(self, name: str, attributes: Attributes = None, timestamp: int | None = None) -> None: ...

    def add_link(self, context: SpanContext, attributes: Attributes = None) -> None: ...

    def set_status(self, status: Status) -> None: ...

    def end(self, end_time: int | None = None) -> None: ...


class AnyTracer(Protocol):
    def start_span(
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes = None,
        links: Sequence[Link] | None = (),
        start_time: int | None = None,
    ) -> AnySpan: ...


class Recorder:
    """A tracer whose finished spans go to ``finished``. ``sampler`` is asked about traces that begin here."""

    def __init__(self, finished: Callable[[ReadableSpan], None], sampler: Sampler, resource: Resource) -> None:
        self._finished = finished
        self._sampler = sampler
        self._resource = resource
        self._scope = InstrumentationScope(SCOPE)
        self._ids = RandomIdGenerator()

    def start_span(
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes = None,
        links: Sequence[Link] | None = (),
        start_time: int | None = None,
    ) -> AnySpan:
        parent = trace.get_current_span(context).get_span_context()
        if parent.is_valid:
            own = SpanContext(
                parent.trace_id, self._ids.generate_span_id(), False, parent.trace_flags, parent.trace_state
            )
        else:
            own = self._root(name)
        if not own.trace_flags.sampled:
            return NonRecordingSpan(own)
        return _Span(
            self._finished,
            name=name,
            context=own,
            parent=parent if parent.is_valid else None,
            resource=self._resource,
            attributes=dict(attributes or {}),
            events=[],
            links=list(links or ()),
            kind=kind,
            start_time=start_time,
            instrumentation_scope=self._scope,
        )

    def _root(self, name: str) -> SpanContext:
        trace_id = self._ids.generate_trace_id()
        sampled = self._sampler.should_sample(None, trace_id, name).decision is Decision.RECORD_AND_SAMPLE
        flags = TraceFlags.RANDOM_TRACE_ID | (TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
        return SpanContext(trace_id, self._ids.generate_span_id(), False, TraceFlags(flags))


class _Span(ReadableSpan):
    _attributes: dict[str, AttributeValue]
    _events: list[Event]
    _links: list[Link]

    def __init__(self, finished: Callable[[ReadableSpan], None], *, context: SpanContext, **fields: Any) -> None:
        super().__init__(context=context, **fields)
        self._finished = finished
        self._own = context

    def get_span_context(self) -> SpanContext:
        return self._own

    def set_attribute(self, key: str, value: AttributeValue) -> None:
        self._attributes[key] = value

    def set_attributes(self, attributes: Mapping[str, AttributeValue]) -> None:
        self._attributes.update(attributes)

    def add_event(self, name: str, attributes: Attributes = None, timestamp: int | None = None) -> None:
        self._events.append(Event(name, attributes, timestamp))

    def add_link(self, context: SpanContext, attributes: Attributes = None) -> None:
        self._links.append(Link(context, attributes))

    def set_status(self, status: Status) -> None:
        self._status = status

    def end(self, end_time: int | None = None) -> None:
        self._end_time = end_time
        self._finished(self)
