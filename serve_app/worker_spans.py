"""A replica's spans of one leg: the engine's work, and in it the time in the queue, the prefill and the decode.

Written down at the end with the times at which things happened, so that a running leg costs nothing. A leg that never
got so far has no span of a later phase.
"""

from __future__ import annotations

from opentelemetry.trace import SpanKind
from opentelemetry.util.types import AttributeValue

from serve_app.core.model import GenerationRequest, Receipt
from serve_app.telemetry import PROVIDER, SpanClock, Telemetry, context_from, context_of, mark_error, operation_of

PHASES = ("queue", "prefill", "decode")


class EngineSpan:
    """``now``: when the request arrived, in seconds of the event loop's clock, as everywhere.

    begun: when the engine got the request, after queue and loading. first_token: when it had produced one.
    """

    def __init__(self, telemetry: Telemetry, request: GenerationRequest, endpoint: str, now: float) -> None:
        self._tracer = telemetry.tracer
        self._clock = SpanClock(now)
        self._arrived = now
        attributes: dict[str, AttributeValue] = {
            "gen_ai.operation.name": operation_of(request.prompt),
            "gen_ai.provider.name": PROVIDER,
            "disco.endpoint": endpoint,
            "disco.attempt": request.attempt_id,
            "disco.handoff.at_token": request.handoff.next_index if request.handoff else 0,
        }
        self._span = self._tracer.start_span(
            f"generate {endpoint}", context_from(request.trace), SpanKind.SERVER, attributes, start_time=self._at(now)
        )
        self.begun: float | None = None
        self.first_token: float | None = None
        self.tokens = 0

    def engine_began(self, model: str, now: float) -> None:
        self.begun = now
        self._span.set_attribute("gen_ai.request.model", model)

    def receipt(self, receipt: Receipt) -> None:
        if receipt.prompt_tokens is not None:
            self._span.set_attribute("disco.prompt_tokens", receipt.prompt_tokens)
        self._span.set_attribute("disco.reused_tokens", receipt.reused)

    def end(self, error: str | None, now: float) -> None:
        """``error``: a stable code, never a message."""
        marks = [self._arrived, self.begun, self.first_token]
        reached = [mark for mark in marks if mark is not None]
        for name, started, ended in zip(PHASES, reached, [*reached[1:], now], strict=False):
            self._phase(name, started, ended)
        self._span.set_attribute("disco.tokens", self.tokens)
        if error is not None:
            mark_error(self._span, error)
        self._span.end(self._at(now))

    def _phase(self, name: str, started: float, ended: float) -> None:
        span = self._tracer.start_span(name, context_of(self._span), start_time=self._at(started))
        span.end(self._at(ended))

    def _at(self, seconds: float) -> int:
        return self._clock.at(seconds)
