from __future__ import annotations

import numpy as np
import pytest

from serve_app.core.cost import Regime
from serve_app.core.latency import LinearTtft
from serve_app.sim import shipped
from serve_app.sim.online import serve
from serve_app.sim.requests import Population, Requests

DEVICE = LinearTtft(0.02, 0.3)


def drawn(count: int, service: str = "openai-gpt-4-1106-preview") -> Requests:
    prompts = shipped.prompts("alpaca")
    people = Population(shipped.measured(service).ttft, prompts.prompt_tokens, prompts.output_tokens, DEVICE)
    return people.draw(count, np.random.default_rng(7))


@pytest.mark.parametrize("regime", Regime)
@pytest.mark.parametrize("budget", [0.1, 0.5])
def test_what_is_spent_keeps_to_the_budget_from_both_sides(regime: Regime, budget: float) -> None:
    served = serve(drawn(2000), DEVICE, regime, budget)
    assert 0.95 * budget <= served.share <= 1.02 * budget
    assert served.most_over(budget, 500) <= 0.05


def test_a_budget_of_nothing_leaves_the_free_side_alone() -> None:
    requests = drawn(200)
    assert np.array_equal(serve(requests, DEVICE, Regime.DEVICE_CONSTRAINED, 0.0).ttft, requests.server_ttft)
    alone = DEVICE.slope * requests.prompt_tokens + DEVICE.intercept
    assert serve(requests, DEVICE, Regime.SERVER_CONSTRAINED, 0.0).ttft == pytest.approx(alone)


def test_it_learns_that_the_server_got_worse() -> None:
    good, bad = drawn(600, "groq-llama2-70b"), drawn(600, "replicate-llama2-70b")
    both = Requests(*(np.concatenate(pair) for pair in zip(_columns(good), _columns(bad), strict=True)))
    served = serve(both, DEVICE, Regime.DEVICE_CONSTRAINED, 0.5, window=200)
    settled = slice(900, 1200)
    assert np.quantile(served.ttft[settled], 0.98) < 0.5 * np.quantile(both.server_ttft[settled], 0.98)


def _columns(requests: Requests) -> tuple[np.ndarray, ...]:
    return requests.prompt_tokens, requests.output_tokens, requests.server_ttft, requests.u
