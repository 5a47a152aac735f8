from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from serve_app.core.breaker import BreakerState
from serve_app.metrics import Metrics
from tests.http.fakes import REPORT


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def test_one_request_is_counted_once_everywhere() -> None:
    metrics = Metrics()
    metrics.observe("disco", REPORT, 0.9, "ok")

    seen = samples(metrics)
    model = (("model", "disco"),)
    assert seen["disco_requests_total", (("code", "ok"),)] == 1
    assert seen["gen_ai_server_time_to_first_token_count", model] == 1
    assert seen["gen_ai_server_time_to_first_token_sum", model] == 0.5
    assert seen["gen_ai_server_time_per_output_token_count", model] == 1
    assert abs(seen["gen_ai_server_time_per_output_token_sum", model] - 0.4) < 1e-9
    assert seen["gen_ai_server_request_duration_sum", model] == 0.9
    assert seen["gen_ai_client_token_usage_sum", (*model, ("token_type", "input"))] == 5
    assert seen["gen_ai_client_token_usage_sum", (*model, ("token_type", "output"))] == 2
    assert seen["disco_wins_total", (("endpoint", "phone"),)] == 1
    assert seen["disco_hedges_total", (("hedge", "fired"),)] == 1
    assert seen["disco_migrations_total", (("outcome", "completed"), ("reason", "planned"))] == 1
    assert seen["disco_delayed_tokens_total", ()] == 3
    assert seen["disco_cost_usd_total", (("endpoint", "cloud"),)] == 0.25
    assert seen["disco_cost_usd_total", (("endpoint", "phone"),)] == 0.5
    assert seen["disco_legs_total", (("endpoint", "cloud"), ("outcome", "lost"), ("reason", "dispatch"))] == 1
    assert seen["disco_qoe_sum", model] == 0.97


def test_a_request_without_a_token_has_no_first_one() -> None:
    metrics = Metrics()
    silent = REPORT | {"ttft_s": None, "completion_tokens": 0, "winner": None, "qoe": None}
    metrics.observe("disco", silent, 0.9, "endpoint_timeout")

    seen = samples(metrics)
    assert seen["disco_requests_total", (("code", "endpoint_timeout"),)] == 1
    assert ("gen_ai_server_time_to_first_token_count", (("model", "disco"),)) not in seen
    assert ("disco_wins_total", (("endpoint", "phone"),)) not in seen


def test_a_single_token_has_no_time_between_tokens() -> None:
    metrics = Metrics()
    metrics.observe("disco", REPORT | {"completion_tokens": 1}, 0.9, "ok")

    assert ("gen_ai_server_time_per_output_token_count", (("model", "disco"),)) not in samples(metrics)


def test_the_budget_is_read_when_asked() -> None:
    metrics, share = Metrics(), [0.25]
    metrics.watch_budget(lambda: share[0])
    assert samples(metrics)["disco_budget_share", ()] == 0.25
    share[0] = 0.5
    assert samples(metrics)["disco_budget_share", ()] == 0.5


def test_the_states_of_breakers_are_read_when_asked() -> None:
    metrics, states = Metrics(), dict.fromkeys(("cloud", "phone"), BreakerState.CLOSED)
    metrics.watch_breakers(lambda: states)
    assert [samples(metrics)["disco_breaker_state", (("endpoint", name),)] for name in states] == [0, 0]
    states["phone"] = BreakerState.OPEN
    assert [samples(metrics)["disco_breaker_state", (("endpoint", name),)] for name in states] == [0, 2]


def test_two_routers_in_a_process_count_apart() -> None:
    first, second = Metrics(), Metrics()
    first.failed("overloaded")

    assert samples(first)["disco_requests_total", (("code", "overloaded"),)] == 1
    assert ("disco_requests_total", (("code", "overloaded"),)) not in samples(second)
