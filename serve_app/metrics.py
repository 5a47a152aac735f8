"""Prometheus metrics of one router replica: OpenTelemetry's GenAI names where there is one, ``disco_*`` beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from serve_app.core.breaker import BreakerState

_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_TBT = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_QOE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536)


def _state_of(states: Callable[[], Mapping[str, BreakerState]], endpoint: str) -> float:
    return _STATES.index(states()[endpoint])


_STATES = (BreakerState.CLOSED, BreakerState.HALF_OPEN, BreakerState.OPEN)


class Metrics:
    """Fed once per request, at its end; ``model`` is always a served name, so labels stay few."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.running = Gauge("disco_streams_running", "Streams under way", registry=registry)
        self._requests = Counter("disco_requests", "Requests by outcome code", ["code"], registry=registry)
        self._ttft = Histogram(
            "gen_ai_server_time_to_first_token", "Seconds", ["model"], buckets=_TTFT, registry=registry
        )
        self._tbt = Histogram(
            "gen_ai_server_time_per_output_token", "Seconds after the first token, per token", ["model"],
            buckets=_TBT, registry=registry,
        )  # fmt: skip
        self._duration = Histogram(
            "gen_ai_server_request_duration", "Seconds", ["model"], buckets=_SECONDS, registry=registry
        )
        self._usage = Histogram(
            "gen_ai_client_token_usage", "Tokens", ["model", "token_type"], buckets=_TOKENS, registry=registry
        )
        self._wins = Counter("disco_wins", "First tokens by endpoint", ["endpoint"], registry=registry)
        self._hedges = Counter(
            "disco_hedges", "Plans by what became of the second launch", ["hedge"], registry=registry
        )
        self._migrations = Counter("disco_migrations", "Handoffs", ["reason", "outcome"], registry=registry)
        self._delayed = Counter("disco_delayed_tokens", "Tokens late after a migration (delay_num)", registry=registry)
        self._qoe = Histogram(
            "disco_qoe", "Quality of experience, 1 is best", ["model"], buckets=_QOE, registry=registry
        )
        self._cost = Counter("disco_cost_usd", "Cost of all legs", ["endpoint"], registry=registry)
        self._legs = Counter("disco_legs", "Calls to endpoints", ["endpoint", "reason", "outcome"], registry=registry)

    def watch_budget(self, share: Callable[[], float]) -> None:
        """``share``: of all prompt tokens, those the constrained side prefilled (compare the paper's b)."""
        gauge = Gauge("disco_budget_share", "Share of prompt tokens on the constrained side", registry=self._registry)
        gauge.set_function(share)

    def watch_fallbacks(self, count: Callable[[], float]) -> None:
        """``count``: requests planned by a static rule so far, because an estimate failed."""
        gauge = Gauge("disco_static_plans", "Plans made without estimates, since the start", registry=self._registry)
        gauge.set_function(count)

    def watch_breakers(self, states: Callable[[], Mapping[str, BreakerState]]) -> None:
        """``states``: of every endpoint's circuit breaker."""
        gauge = Gauge("disco_breaker_state", "0: closed, 1: half open, 2: open", ["endpoint"], registry=self._registry)
        for endpoint in states():
            gauge.labels(endpoint).set_function(partial(_state_of, states, endpoint))

    def failed(self, code: str) -> None:
        """A request ended with an error before it had a report."""
        self._requests.labels(code).inc()

    def observe(self, model: str, report: Mapping[str, Any], seconds: float, code: str) -> None:
        """``seconds``: from the request's arrival to its end. ``code``: "ok", or the error's."""
        self._requests.labels(code).inc()
        self._duration.labels(model).observe(seconds)
        tokens, ttft = report["completion_tokens"], report["ttft_s"]
        if ttft is not None:
            self._ttft.labels(model).observe(ttft)
            if tokens > 1:
                self._tbt.labels(model).observe((seconds - ttft) / (tokens - 1))
        self._usage.labels(model, "input").observe(report["prompt_tokens"])
        self._usage.labels(model, "output").observe(tokens)
        self._hedges.labels(report["hedge"]).inc()
        if report["winner"] is not None:
            self._wins.labels(report["winner"]).inc()
        for leg in report["legs"]:
            self._legs.labels(leg["endpoint"], leg["reason"], leg["outcome"]).inc()
            self._cost.labels(leg["endpoint"]).inc(leg["cost_usd"])
        for migration in report["migrations"]:
            self._migrations.labels(migration["reason"], migration["outcome"]).inc()
        self._delayed.inc(report["delay_num"])
        if report["qoe"] is not None:
            self._qoe.labels(model).observe(report["qoe"])

    def render(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self._registry)
