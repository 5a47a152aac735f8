from __future__ import annotations

import numpy as np
import pytest

from serve_app.core.cost import Regime
from serve_app.core.latency import LinearTtft
from serve_app.sim import shipped
from serve_app.sim.exact import play_loop
from serve_app.sim.online import Loop, serve
from serve_app.sim.requests import Population, Requests

DEVICE = LinearTtft(0.02, 0.3)


def drawn(count: int, service: str = "openai-gpt-4-1106-preview") -> Requests:
    prompts = shipped.prompts("alpaca")
    people = Population(shipped.measured(service).ttft, prompts.prompt_tokens, prompts.output_tokens, DEVICE)
    return people.draw(count, np.random.default_rng(7))


@pytest.mark.parametrize("regime", Regime)
@pytest.mark.parametrize("budget", [0.1, 0.5])
def test_what_is_spent_keeps_to_the_budget_from_both_sides(regime: Regime, budget: float) -> None:
    served = serve(drawn(2000), Loop(DEVICE, regime, budget))
    assert 0.95 * budget <= served.share <= 1.02 * budget
    assert served.most_over(budget, 500) <= 0.05


def test_a_budget_of_nothing_leaves_the_free_side_alone() -> None:
    requests = drawn(200)
    assert np.array_equal(serve(requests, Loop(DEVICE, Regime.DEVICE_CONSTRAINED, 0.0)).ttft, requests.server_ttft)
    alone = DEVICE.slope * requests.prompt_tokens + DEVICE.intercept
    assert serve(requests, Loop(DEVICE, Regime.SERVER_CONSTRAINED, 0.0)).ttft == pytest.approx(alone)


def test_it_learns_that_the_server_got_worse() -> None:
    good, bad = drawn(600, "groq-llama2-70b"), drawn(600, "replicate-llama2-70b")
    both = Requests(*(np.concatenate(pair) for pair in zip(_columns(good), _columns(bad), strict=True)))
    served = serve(both, Loop(DEVICE, Regime.DEVICE_CONSTRAINED, 0.5, window=200))
    settled = slice(900, 1200)
    assert np.quantile(served.ttft[settled], 0.98) < 0.5 * np.quantile(both.server_ttft[settled], 0.98)


@pytest.mark.parametrize(("regime", "budget"), [(Regime.DEVICE_CONSTRAINED, 0.1), (Regime.SERVER_CONSTRAINED, 0.5)])
def test_the_controller_steps_at_the_same_requests_as_in_production(regime: Regime, budget: float) -> None:
    """Estimates, fits and the budget close the loop in both, over 2,000 requests."""
    rng = np.random.default_rng(17)
    # Short answers: some are over before a slow server has spoken.
    people = Population(rng.lognormal(-0.7, 0.9, 100_000), rng.integers(4, 90, 300), rng.integers(1, 20, 300), DEVICE)
    requests = people.draw(2000, rng)
    loop = Loop(DEVICE, regime, budget, server_rate=39.7, device_rate=14.9)
    served = serve(requests, loop)
    exact, steps = play_loop(requests, loop)
    assert steps == served.steps
    assert len(steps) > 100
    assert [one.server_at is not None for one in exact] == served.server_started.tolist()
    assert [one.device_at is not None for one in exact] == served.device_started.tolist()
    assert np.abs([one.ttft for one in exact] - served.ttft).max() < 1e-9


def _columns(requests: Requests) -> tuple[np.ndarray, ...]:
    return requests.prompt_tokens, requests.output_tokens, requests.server_ttft, requests.u
