from __future__ import annotations

import pytest
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics

from serve_app import instruments as i
from serve_app.instruments import CATALOGUE, Instrument, Kind
from serve_app.metrics import Metrics, Times
from tests.http.fakes import REPORT
from tests.support.prometheus import value

TIMES = Times(10.0, 10.5, 10.6, 10.9)
CHAT = {"gen_ai_operation_name": "chat", "gen_ai_provider_name": "disco", "gen_ai_request_model": "disco"}


def test_one_request_is_counted_once_everywhere() -> None:
    metrics = Metrics()
    metrics.observe("disco", "chat", REPORT, TIMES, "ok")

    text = metrics.render().decode()
    assert value(text, "disco_requests_total", code="ok") == 1
    assert value(text, "gen_ai_server_time_to_first_token_seconds_count", **CHAT) == 1
    assert value(text, "gen_ai_server_time_to_first_token_seconds_sum", **CHAT) == pytest.approx(0.5)
    assert value(text, "disco_time_to_first_token_delivered_seconds_sum", **CHAT) == pytest.approx(0.6)
    assert value(text, "gen_ai_server_time_per_output_token_seconds_count", **CHAT) == 1
    assert value(text, "gen_ai_server_time_per_output_token_seconds_sum", **CHAT) == pytest.approx(0.4)
    assert value(text, "gen_ai_server_request_duration_seconds_sum", **CHAT, error_type="") == pytest.approx(0.9)
    assert value(text, "gen_ai_client_token_usage_sum", **CHAT, gen_ai_token_type="input") == 5
    assert value(text, "gen_ai_client_token_usage_sum", **CHAT, gen_ai_token_type="output") == 2
    assert value(text, "disco_wins_total", endpoint="phone") == 1
    assert value(text, "disco_hedges_total", hedge="fired") == 1
    assert value(text, "disco_migrations_total", outcome="completed", reason="planned") == 1
    assert value(text, "disco_delay_num_sum") == 3
    assert value(text, "disco_cost_usd_total", endpoint="cloud", kind="cloud") == 0.25
    assert value(text, "disco_cost_usd_total", endpoint="phone", kind="device") == 0.5
    assert value(text, "disco_legs_total", endpoint="cloud", kind="cloud", outcome="lost", reason="dispatch") == 1
    assert value(text, "disco_leg_time_to_first_token_seconds_sum", endpoint="phone") == 0.2
    assert value(text, "disco_leg_queue_seconds_sum", endpoint="phone") == 0.1
    assert value(text, "disco_qoe_sum", **CHAT) == 0.97
    with pytest.raises(KeyError):
        value(text, "disco_leg_time_to_first_token_seconds_sum", endpoint="cloud")


def test_a_request_without_a_token_has_no_first_one() -> None:
    metrics = Metrics()
    silent = REPORT | {"completion_tokens": 0, "winner": None, "qoe": None, "migrations": []}
    metrics.observe("disco", "chat", silent, Times(10.0, None, None, 10.9), "endpoint_timeout")

    text = metrics.render().decode()
    assert value(text, "disco_requests_total", code="endpoint_timeout") == 1
    assert value(text, "gen_ai_server_request_duration_seconds_count", error_type="endpoint_timeout") == 1
    assert value(text, "disco_delay_num_count") == 0
    for name in ("gen_ai_server_time_to_first_token_seconds", "disco_time_to_first_token_delivered_seconds"):
        with pytest.raises(KeyError):
            value(text, f"{name}_count")
    with pytest.raises(KeyError):
        value(text, "disco_wins_total")


@pytest.mark.parametrize(("tokens", "code"), [(1, "ok"), (2, "endpoint_fault")])
def test_only_a_complete_answer_of_several_tokens_has_a_time_per_token(tokens: int, code: str) -> None:
    metrics = Metrics()
    metrics.observe("disco", "chat", REPORT | {"completion_tokens": tokens}, TIMES, code)

    with pytest.raises(KeyError):
        value(metrics.render().decode(), "gen_ai_server_time_per_output_token_seconds_count")


def test_a_client_that_left_is_no_error() -> None:
    metrics = Metrics()
    metrics.observe("disco", "chat", REPORT, TIMES, "cancelled")

    text = metrics.render().decode()
    assert value(text, "disco_requests_total", code="cancelled") == 1
    assert value(text, "gen_ai_server_request_duration_seconds_count", error_type="") == 1


def test_gauges_are_read_when_asked() -> None:
    metrics, share, states = Metrics(), [0.25], {"cloud": 0.0, "phone": 0.0}
    metrics.watch(i.BUDGET_SHARE, lambda: {(): share[0]})
    metrics.watch(i.BREAKER, lambda: {(name,): state for name, state in states.items()})
    assert value(metrics.render().decode(), "disco_budget_share") == 0.25
    share[0], states["phone"] = 0.5, 2.0
    text = metrics.render().decode()
    assert value(text, "disco_budget_share") == 0.5
    assert [value(text, "disco_breaker_state", endpoint=name) for name in states] == [0, 2]
    del states["phone"]
    with pytest.raises(KeyError):
        value(metrics.render().decode(), "disco_breaker_state", endpoint="phone")


def test_two_routers_in_a_process_count_apart() -> None:
    first, second = Metrics(), Metrics()
    first.failed("overloaded")

    assert value(first.render().decode(), "disco_requests_total", code="overloaded") == 1
    with pytest.raises(KeyError):
        value(second.render().decode(), "disco_requests_total")


def test_another_sink_gets_all_of_it_too() -> None:
    class Seen:
        def __init__(self) -> None:
            self.records: list[tuple[str, float, tuple[str, ...]]] = []

        def record(self, instrument: Instrument, value: float, labels: tuple[str, ...]) -> None:
            self.records.append((instrument.name, value, labels))

    metrics, seen = Metrics(), Seen()
    metrics.also_to(seen)
    metrics.watch(i.BUDGET_SHARE, lambda: {(): 0.5})
    metrics.observe("disco", "chat", REPORT, TIMES, "ok")
    assert ("disco_wins", 1, ("phone",)) in seen.records
    assert not any(name == "disco_budget_share" for name, *_ in seen.records)
    metrics.publish(seen)
    assert seen.records[-1] == ("disco_budget_share", 0.5, ())


#: Where the conventions ask for an explicit one: OpenTelemetry, semantic conventions for GenAI metrics.
BUCKETS = {
    gen_ai_metrics.GEN_AI_SERVER_TIME_TO_FIRST_TOKEN: (
        "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10"
    ),
    gen_ai_metrics.GEN_AI_SERVER_TIME_PER_OUTPUT_TOKEN: "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5",
    gen_ai_metrics.GEN_AI_SERVER_REQUEST_DURATION: (
        "0.01 0.02 0.04 0.08 0.16 0.32 0.64 1.28 2.56 5.12 10.24 20.48 40.96 81.92"
    ),
    gen_ai_metrics.GEN_AI_CLIENT_TOKEN_USAGE: (
        "1 4 16 64 256 1024 4096 16384 65536 262144 1048576 4194304 16777216 67108864"
    ),
}


@pytest.mark.parametrize("name", BUCKETS)
def test_names_and_buckets_are_the_conventions(name: str) -> None:
    unit = "" if name == gen_ai_metrics.GEN_AI_CLIENT_TOKEN_USAGE else "_seconds"
    (instrument,) = [each for each in CATALOGUE if each.name == name.replace(".", "_") + unit]
    assert instrument.kind is Kind.HISTOGRAM
    assert instrument.buckets == tuple(float(bound) for bound in BUCKETS[name].split())
    assert set(instrument.labels) >= set(CHAT)
