"""Every metric there is: name, kind, labels, buckets. docs/metrics.md is checked against this list.

Names and labels are OpenTelemetry's in the form that Prometheus gives them: dots become underscores, a unit becomes a
suffix. GenAI names where the conventions have one, with their buckets; ours are ``disco_*``. Counters are shown with
``_total``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Instrument:
    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_GENAI = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")

_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_TBT = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_DURATION = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOKENS = tuple(float(4**power) for power in range(14))
_QOE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)
_LATE = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)

TIME_TO_FIRST_TOKEN: Final = Instrument(
    "gen_ai_server_time_to_first_token_seconds",
    Kind.HISTOGRAM,
    "From a request's arrival until the router received the first content token",
    _GENAI,
    _TTFT,
)
TIME_PER_OUTPUT_TOKEN: Final = Instrument(
    "gen_ai_server_time_per_output_token_seconds",
    Kind.HISTOGRAM,
    "Mean time per token after the first one, of complete answers",
    _GENAI,
    _TBT,
)
REQUEST_DURATION: Final = Instrument(
    "gen_ai_server_request_duration_seconds",
    Kind.HISTOGRAM,
    "From a request's arrival to the end of its answer; error_type is empty where there was no error",
    (*_GENAI, "error_type"),
    _DURATION,
)
TOKEN_USAGE: Final = Instrument(
    "gen_ai_client_token_usage",
    Kind.HISTOGRAM,
    "Tokens by request, input and output",
    (*_GENAI, "gen_ai_token_type"),
    _TOKENS,
)
DELIVERED: Final = Instrument(
    "disco_time_to_first_token_delivered_seconds",
    Kind.HISTOGRAM,
    "From a request's arrival until its first content had gone to the client",
    _GENAI,
    _TTFT,
)
REQUESTS: Final = Instrument(
    "disco_requests",
    Kind.COUNTER,
    "Requests that are over: ok, cancelled (the client left), or an error's code",
    ("code",),
)
STREAMS: Final = Instrument("disco_streams_running", Kind.GAUGE, "Streams under way")
HEDGES: Final = Instrument("disco_hedges", Kind.COUNTER, "Plans, by what became of the second launch", ("hedge",))
WINS: Final = Instrument("disco_wins", Kind.COUNTER, "First tokens", ("endpoint",))
LEGS: Final = Instrument("disco_legs", Kind.COUNTER, "Calls to endpoints", ("endpoint", "kind", "reason", "outcome"))
LEG_TTFT: Final = Instrument(
    "disco_leg_time_to_first_token_seconds",
    Kind.HISTOGRAM,
    "From a leg's start to its first content token, whether it won or not",
    ("endpoint",),
    _TTFT,
)
LEG_QUEUE: Final = Instrument(
    "disco_leg_queue_seconds", Kind.HISTOGRAM, "What a leg waited for its slot", ("endpoint",), _TTFT
)
MIGRATIONS: Final = Instrument("disco_migrations", Kind.COUNTER, "Handoffs", ("reason", "outcome"))
DELAY_NUM: Final = Instrument(
    "disco_delay_num",
    Kind.HISTOGRAM,
    "Tokens that came later than the reader wanted them (delay_num), by stream that moved",
    (),
    _LATE,
)
QOE: Final = Instrument("disco_qoe", Kind.HISTOGRAM, "Quality of experience by request; 1 is best", _GENAI, _QOE)
COST: Final = Instrument(
    "disco_cost_usd", Kind.COUNTER, "Cost of all legs; notional where prices are", ("endpoint", "kind")
)
BUDGET_SHARE: Final = Instrument(
    "disco_budget_share", Kind.GAUGE, "Share of prompt tokens that the constrained side has processed"
)
BUDGET_TARGET: Final = Instrument("disco_budget_target", Kind.GAUGE, "The share that it may process: b")
BREAKER: Final = Instrument("disco_breaker_state", Kind.GAUGE, "0: closed, 1: half open, 2: open", ("endpoint",))
RUNNING: Final = Instrument("disco_endpoint_legs", Kind.GAUGE, "Legs that this router runs there", ("endpoint",))
QUEUE: Final = Instrument(
    "disco_endpoint_queue_seconds", Kind.GAUGE, "What a newcomer is expected to queue there", ("endpoint",)
)
BACKLOG: Final = Instrument(
    "disco_backlog_tokens", Kind.GAUGE, "Tokens of running streams that are accepted and not delivered yet"
)
LEAD: Final = Instrument(
    "disco_lead_tokens", Kind.GAUGE, "Tokens of running streams that the reader may have and has not read yet"
)
FIT_AGE: Final = Instrument(
    "disco_fit_age_seconds", Kind.GAUGE, "Since the estimates were fitted last; 0 before the first request"
)
STATIC_PLANS: Final = Instrument(
    "disco_static_plans", Kind.GAUGE, "Plans made without an estimate, or by a guess in its place, since the start"
)

CATALOGUE: Final = (
    TIME_TO_FIRST_TOKEN,
    TIME_PER_OUTPUT_TOKEN,
    REQUEST_DURATION,
    TOKEN_USAGE,
    DELIVERED,
    REQUESTS,
    STREAMS,
    HEDGES,
    WINS,
    LEGS,
    LEG_TTFT,
    LEG_QUEUE,
    MIGRATIONS,
    DELAY_NUM,
    QOE,
    COST,
    BUDGET_SHARE,
    BUDGET_TARGET,
    BREAKER,
    RUNNING,
    QUEUE,
    BACKLOG,
    LEAD,
    FIT_AGE,
    STATIC_PLANS,
)
