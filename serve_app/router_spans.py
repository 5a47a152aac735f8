"""The router's spans of one request: the HTTP call, the answer, a call to each endpoint, and each handoff.

Their number follows the legs, never the tokens. Times come from the event loop's clock, so a span tells when something
was so and not when it was written down. Attribute names are those of OpenTelemetry's HTTP and GenAI conventions; ours
are under ``disco.*``. No text of a prompt, an answer or an error's message is in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry.trace import Link, SpanKind
from opentelemetry.util.types import Attributes, AttributeValue

from serve_app.core.legs import Leg, MigrationRecord
from serve_app.core.migration import MigrationDecision
from serve_app.core.model import DispatchPlan, Sampling
from serve_app.spans import AnySpan
from serve_app.streams import Outcome
from serve_app.telemetry import (
    PROVIDER,
    Operation,
    SpanClock,
    Telemetry,
    carrier_of,
    context_from,
    context_of,
    mark_error,
)

#: What a leg's or a handoff's link says that its target is.
_LINK = "disco.link"


@dataclass(frozen=True, slots=True)
class Begun:
    """A handoff that has begun. ``source``: who wrote so far. ``decision``: the verdict that began a planned one."""

    record: MigrationRecord
    source: Leg | None
    decision: MigrationDecision | None


class ServerSpan:
    """The HTTP call of one client, from its arrival until the answer is out or the client is gone.

    ``carrier``: the client's W3C trace context, if it sent one. ``now``: seconds of the event loop's clock, everywhere.
    """

    def __init__(
        self,
        telemetry: Telemetry,
        carrier: Mapping[str, str],
        path: str,
        request_id: str,
        now: float,
        scheme: str = "http",
    ) -> None:
        parent = otel_context.get_current() if telemetry.joins_ambient else context_from(carrier)
        attributes = {
            "http.request.method": "POST",
            "http.route": path,
            "url.path": path,
            "url.scheme": scheme,
            "disco.request_id": request_id,
        }
        self._clock = SpanClock(now)
        self._span = telemetry.tracer.start_span(
            f"POST {path}", parent, SpanKind.SERVER, attributes, start_time=self._clock.at(now)
        )

    @property
    def carrier(self) -> dict[str, str]:
        """Makes the answer's span a child of this one."""
        return carrier_of(self._span)

    def answering(self, response_id: str, *, stream: bool) -> None:
        self._span.set_attribute("gen_ai.response.id", response_id)
        self._span.set_attribute("gen_ai.request.stream", stream)

    def first_token_delivered(self, began: float, now: float) -> None:
        """The first content has gone to the client, who asked at ``began``."""
        self._span.set_attribute("disco.time_to_first_token_delivered", now - began)
        self._span.add_event("disco.first_token.delivered", timestamp=self._clock.at(now))

    def end(self, status: int | None, code: str, now: float) -> None:
        """``status``: the response's, None where the client left before it. ``code``: ok, cancelled, or the error's."""
        if status is not None:
            self._span.set_attribute("http.response.status_code", status)
        self._span.set_attribute("disco.outcome", code)
        if code not in ("ok", "cancelled"):
            self._span.set_attribute("error.type", code)
            # By HTTP's conventions a refusal is the client's error, not the server's.
            if status is None or status < 400 or status >= 500:
                mark_error(self._span, code)
        self._span.end(self._clock.at(now))


class RequestSpan:
    """The answer: what was decided, and what became of it."""

    def __init__(
        self,
        telemetry: Telemetry,
        carrier: Mapping[str, str],
        request_id: str,
        model: str,
        operation: Operation,
        now: float,
        *,
        key: str | None = None,
        sampling: Sampling | None = None,
    ) -> None:
        self._began = now
        self._clock = SpanClock(now)
        self._tracer = telemetry.tracer
        self._operation = operation
        attributes = _genai(operation, model) | {"disco.request_id": request_id} | _asked(sampling)
        if key is not None:
            attributes["disco.key"] = key
        self._span = self._tracer.start_span(
            f"{operation} {model}", context_from(carrier), SpanKind.INTERNAL, attributes, start_time=self._clock.at(now)
        )
        self._legs: dict[str, AnySpan] = {}
        self._handoffs: list[tuple[MigrationRecord, AnySpan]] = []

    def planned(self, plan: DispatchPlan, eligible: Sequence[str], now: float) -> None:
        """Why the request starts where it starts."""
        self._event(
            "disco.dispatch",
            now,
            {
                "disco.policy": plan.policy,
                "disco.reason": plan.reason,
                "disco.launches": [launch.endpoint for launch in plan.launches],
                "disco.delays": [launch.delay for launch in plan.launches],
                "disco.eligible": list(eligible),
                "disco.avoided": list(plan.avoided),
            },
        )

    def leg_started(self, leg: Leg, handoff: Begun | None = None) -> dict[str, str]:
        """Returns the carrier for the endpoint. ``handoff``: the one whose target the leg is."""
        self._settle()
        attributes = _genai(self._operation, leg.info.model) | {
            "disco.endpoint": leg.info.id,
            "disco.endpoint.kind": leg.info.kind.value,
            "disco.attempt": leg.attempt,
            "disco.leg.reason": leg.reason.value,
        }
        if leg.info.imitates is not None:
            attributes["disco.imitates"] = leg.info.imitates
        span = self._child(f"{self._operation} {leg.info.id}", SpanKind.CLIENT, attributes, leg.started)
        self._legs[leg.attempt] = span
        if handoff is not None:
            self._handoffs.append((handoff.record, self._handoff(handoff, span)))
        return carrier_of(span)

    def leg_ended(self, leg: Leg, winner: Leg | None, report: Mapping[str, Any], now: float) -> None:
        """``report``: the leg's part of the request's report. ``winner``: whose first token came first, once known."""
        span = self._legs[leg.attempt]
        span.set_attribute("disco.leg.outcome", report["outcome"])
        span.set_attribute("disco.leg.won", leg is winner)
        span.set_attribute("disco.cost_usd", report["cost_usd"])
        span.set_attribute("gen_ai.usage.input_tokens", report["prefill_tokens"])
        span.set_attribute("gen_ai.usage.output_tokens", report["tokens"])
        if report["ttft_s"] is not None:
            span.set_attribute("gen_ai.response.time_to_first_chunk", report["ttft_s"])
        if leg.first_token is not None:
            span.add_event("disco.first_token.received", timestamp=self._clock.at(leg.first_token))
        if leg.suspected_at is not None:
            span.add_event("disco.suspected", timestamp=self._clock.at(leg.suspected_at))
        if winner is not None and leg is not winner:
            span.add_link(self._legs[winner.attempt].get_span_context(), {_LINK: "winner"})
        if report["error"] is not None:
            mark_error(span, report["error"])
        span.end(self._clock.at(now))
        self._settle()

    def end(
        self,
        outcome: Outcome,
        code: str,
        winner: Leg | None,
        verdicts: Sequence[tuple[float, MigrationDecision]],
        now: float,
    ) -> None:
        """``code``: ok, cancelled, or the stable one of what went wrong, never a message.

        verdicts: the last judgement on each possible move, and when it was passed.
        """
        report, span = outcome.report, self._span
        self._settle()
        span.set_attributes(
            {
                "gen_ai.usage.input_tokens": outcome.usage.prompt_tokens,
                "gen_ai.usage.output_tokens": outcome.usage.completion_tokens,
                "disco.policy": report["policy"],
                "disco.eligible": report["eligible"],
                "disco.hedge": report["hedge"],
                "disco.legs": len(report["legs"]),
                "disco.migrations": len(report["migrations"]),
                "disco.delay_num": report["delay_num"],
                "disco.cost_usd": report["cost_usd"],
                "disco.outcome": code,
            }
        )
        if code == "ok":
            span.set_attribute("gen_ai.response.finish_reasons", [outcome.finish_reason])
        if winner is not None and winner.first_token is not None:
            span.set_attribute("gen_ai.response.model", winner.info.model)
            span.set_attribute("gen_ai.response.time_to_first_chunk", winner.first_token - self._began)
            self._event("disco.first_token.received", winner.first_token, {"disco.endpoint": winner.info.id})
        for judged_at, decision in verdicts:
            self._event("disco.verdict", judged_at, _weighed(decision) | {"disco.target": decision.target})
        if report["qoe"] is not None:
            span.set_attribute("disco.qoe", report["qoe"])
        if code not in ("ok", "cancelled"):
            mark_error(span, code)
        span.end(self._clock.at(now))

    def _handoff(self, handoff: Begun, target: AnySpan) -> AnySpan:
        """From the trigger to its outcome; the leg that carries on outlives it, so that is linked and not its child."""
        record, links = handoff.record, [Link(target.get_span_context(), {_LINK: "target"})]
        if handoff.source is not None:
            links.append(Link(self._legs[handoff.source.attempt].get_span_context(), {_LINK: "source"}))
        attributes: dict[str, AttributeValue] = {
            "disco.handoff.source": record.source,
            "disco.handoff.target": record.target,
            "disco.handoff.at_token": record.at_token,
            "disco.handoff.mode": record.mode,
            "disco.handoff.reason": record.reason.value,
        }
        weighed = {} if handoff.decision is None else _weighed(handoff.decision)
        return self._child("handoff", SpanKind.INTERNAL, attributes | weighed, record.started, links)

    def _settle(self) -> None:
        """End the spans of handoffs that are decided."""
        for record, span in self._handoffs:
            if record.ended is None:
                continue
            span.set_attribute("disco.handoff.outcome", record.outcome)
            if record.gap is not None:
                span.set_attribute("disco.handoff.gap_s", record.gap)
            if record.accepted_after is not None:
                accepted = self._clock.at(record.started + record.accepted_after)
                span.add_event("disco.handoff.accepted", timestamp=accepted)
            span.end(self._clock.at(record.ended))
        self._handoffs = [pending for pending in self._handoffs if pending[0].ended is None]

    def _child(
        self, name: str, kind: SpanKind, attributes: Attributes, started: float, links: Sequence[Link] = ()
    ) -> AnySpan:
        parent, start = context_of(self._span), self._clock.at(started)
        return self._tracer.start_span(name, parent, kind, attributes, links, start_time=start)

    def _event(self, name: str, at: float, attributes: Attributes) -> None:
        self._span.add_event(name, attributes, timestamp=self._clock.at(at))


def _genai(operation: Operation, model: str) -> dict[str, AttributeValue]:
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": model,
        "gen_ai.output.type": "text",
    }


def _asked(sampling: Sampling | None) -> dict[str, AttributeValue]:
    if sampling is None:
        return {}
    asked: dict[str, AttributeValue] = {
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
    }
    if sampling.seed is not None:
        asked["gen_ai.request.seed"] = sampling.seed
    return asked


def _weighed(decision: MigrationDecision) -> dict[str, AttributeValue]:
    """Without the figures that were never reached."""
    figures = {
        "disco.saving_usd": decision.saving,
        "disco.overhead_usd": decision.overhead,
        "disco.handover_s": decision.handover,
        "disco.buffer_needed": decision.buffer_needed,
        "disco.lead": decision.lead,
    }
    known: dict[str, AttributeValue] = {name: figure for name, figure in figures.items() if figure is not None}
    return known | {"disco.verdict": decision.verdict.value}
