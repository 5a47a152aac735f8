"""One scenario under the closed loop: what the default policy spends and gains when it knows only what it has seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from serve_app.core.cost import Regime
from serve_app.sim.agreement import TOLERANCE, differences
from serve_app.sim.exact import MAX_TOKENS, play_loop
from serve_app.sim.online import Loop, serve
from serve_app.sim.requests import Requests
from serve_app.sim.study import Scenario
from serve_app.sim.vector import quantiles

#: A measurement that is drawn twice differs by up to this part of it: equal ones would leave it to rounding whether a
#: hedge that waits for one of them is due.
SPREAD: Final = 1e-3


@dataclass(frozen=True, slots=True)
class Closed:
    """From a cold start. Seconds; ``spent``: share of the prompt tokens; ``steps``: how often it stepped."""

    regime: Regime
    budget: float
    requests: int
    mean: float
    p99: float
    spent: float
    steps: int


@dataclass(frozen=True, slots=True)
class LoopAgreement:
    """``steps``: requests before which only one of both stepped. ``launches``, ``apart``: as in ``Agreement``."""

    regime: Regime
    budget: float
    requests: int
    steps: int
    launches: int
    apart: float

    @property
    def agrees(self) -> bool:
        return self.steps == 0 and self.launches == 0 and self.apart < TOLERANCE

    @property
    def text(self) -> str:
        verdict = "the same" if self.agrees else "NOT the same"
        return (
            f"exact, {self.regime.value}, closed loop, b = {self.budget:g}: {verdict} for {self.requests} requests "
            f"({self.steps} other steps of the controller, {self.launches} other launches, "
            f"TTFTs within {self.apart:.0e} s)"
        )


def close(scenario: Scenario, regime: Regime, budget: float, count: int) -> Closed:
    """``count`` requests, one after the other."""
    served = serve(_draw(scenario, count), _loop(scenario, regime, budget))
    p99 = quantiles(served.ttft.copy(), (0.99,))[0]
    return Closed(regime, budget, count, float(served.ttft.mean()), p99, served.share, len(served.steps))


def compare_loop(
    scenario: Scenario, regime: Regime, budget: float, count: int, progress: Callable[[int], None] = lambda _: None
) -> LoopAgreement:
    """With the production code on virtual time."""
    requests, loop = _draw(scenario, count), _loop(scenario, regime, budget)
    served = serve(requests, loop)
    exact, steps = play_loop(requests, loop, progress)
    launches, apart = differences(exact, served)
    return LoopAgreement(
        regime,
        budget,
        count,
        len(set(steps) ^ set(served.steps)),
        launches,
        apart,
    )


def _loop(scenario: Scenario, regime: Regime, budget: float) -> Loop:
    device = scenario.device
    return Loop(device.line, regime, budget, server_rate=scenario.service.decode_rate, device_rate=device.decode_rate)


def _draw(scenario: Scenario, count: int) -> Requests:
    _, population = scenario.split()
    rng = np.random.default_rng(scenario.seed)
    drawn = population.draw(count, rng)
    return replace(
        drawn,
        output_tokens=np.clip(drawn.output_tokens, 1, MAX_TOKENS),
        server_ttft=drawn.server_ttft * (1 + SPREAD * rng.random(count)),
    )
