"""The closed loop: the planner and the budget as they serve, which know only what they have seen so far.

The production classes decide, request by request, since whether one may reserve depends on all before it; the endpoints
are replaced by draws. One answer is over before the next request comes. Nothing queues, and nothing moves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from serve_app.core.budget import TokenBudget
from serve_app.core.cost import CostModel, Regime, UnitCost
from serve_app.core.estimates import Observation, Seen
from serve_app.core.latency import EmpiricalTtft, LatencyProfile, LinearTtft
from serve_app.core.legs import UNHINDERED
from serve_app.core.model import DispatchPlan, EndpointId, EndpointInfo, EndpointKind
from serve_app.core.planner import Planner, PlannerConfig
from serve_app.sim.requests import Requests

SERVER, DEVICE = "server", "device"
INFOS: Final = (
    EndpointInfo(SERVER, EndpointKind.CLOUD, "trace", 1 << 20, vocabulary="trace"),
    EndpointInfo(DEVICE, EndpointKind.DEVICE, "trace", 1 << 20, vocabulary="trace"),
)

#: Believed of a server of which nothing was seen yet, seconds.
_PRIOR: Final = EmpiricalTtft(np.linspace(0.3, 2.0, 30))
_FREE: Final = CostModel({SERVER: UnitCost(0.0, 0.0), DEVICE: UnitCost(0.0, 0.0)})


@dataclass(frozen=True, slots=True)
class Loop:
    """The default policy under the budget b. ``window``: observations that the estimates keep; rates in tokens/s.

    ahead: tokens of an answer that may be written before a reader of ``reader`` tokens/s needs them.
    """

    device: LinearTtft
    regime: Regime
    budget: float
    window: int = 500
    server_rate: float = 50.0
    device_rate: float = 20.0
    reader: float = 4.8
    ahead: int = 128

    def beliefs(self) -> tuple[PlannerConfig, Sequence[EndpointInfo], CostModel, Mapping[EndpointId, LatencyProfile]]:
        """What its planner starts with. It refits by news alone, since when requests come does not matter here."""
        profiles = {
            SERVER: LatencyProfile(_PRIOR, 1e6, self.server_rate),
            DEVICE: LatencyProfile(self.device, 1 / self.device.slope, self.device_rate),
        }
        config = PlannerConfig(regime=self.regime, budget=self.budget, window=self.window, refit_seconds=math.inf)
        return config, INFOS, _FREE, profiles

    def answer_seconds(self, tokens: int, rate: float) -> float:
        """From the first token of an answer to its last."""
        return max(0.0, (tokens - 1) / rate, (tokens - 1 - self.ahead) / self.reader)


@dataclass(frozen=True, slots=True)
class Served:
    """One entry per request. ttft: seconds. spent: tokens that the constrained side prefilled.

    steps: the requests before which the controller looked anew: estimates, and the share to plan with.
    """

    ttft: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    spent: NDArray[np.int64]
    server_started: NDArray[np.bool_]
    device_started: NDArray[np.bool_]
    steps: tuple[int, ...]

    @property
    def share(self) -> float:
        """Of all prompt tokens, what was spent."""
        return float(self.spent.sum() / self.prompt_tokens.sum())

    def most_over(self, budget: float, window: int) -> float:
        """The largest excess over ``budget`` of the share spent in ``window`` consecutive requests."""
        spent, prompts = (np.append(0, np.cumsum(tokens)) for tokens in (self.spent, self.prompt_tokens))
        shares = (spent[window:] - spent[:-window]) / (prompts[window:] - prompts[:-window])
        return float(shares.max()) - budget


def serve(requests: Requests, loop: Loop) -> Served:
    """From the first request on."""
    planner, bucket = Planner(*loop.beliefs()), TokenBudget(loop.budget)
    count = len(requests)
    ttft, steps = np.empty(count), []
    started = {name: np.zeros(count, dtype=np.bool_) for name in (SERVER, DEVICE)}
    constrained = SERVER if loop.regime is Regime.SERVER_CONSTRAINED else DEVICE
    rows = zip(
        requests.prompt_tokens.tolist(),
        requests.output_tokens.tolist(),
        requests.server_ttft.tolist(),
        requests.u.tolist(),
        strict=True,
    )
    for number, (length, tokens, server, u) in enumerate(rows):
        bucket.admit(length)
        account = bucket.unreserved()

        def afford(delay: float, length: int = length) -> bool:
            nonlocal account
            reservation = bucket.reserve(length, hedge=delay > 0)
            account = reservation or account
            return reservation is not None

        fits = planner.fits
        plan = planner.plan(length, INFOS, 0.0, u, afford=afford, share=bucket.planned_share)
        if planner.fits > fits:
            steps.append(number)
        race = _Race(plan, {SERVER: server, DEVICE: loop.device.predict(length)})
        ttft[number] = race.first
        for name in race.started:
            started[name][number] = True
        account.settle(length if constrained in race.started else 0)
        _learn(planner, loop, race, length, tokens)
    spent = np.where(started[constrained], requests.prompt_tokens, 0)
    return Served(ttft, requests.prompt_tokens, spent, started[SERVER], started[DEVICE], tuple(steps))


class _Race:
    """What becomes of a plan. started: delays by name, in order; takes: TTFTs; answers: seconds of each first token."""

    def __init__(self, plan: DispatchPlan, takes: Mapping[EndpointId, float]) -> None:
        delays = {launch.endpoint: launch.delay for launch in plan.launches}
        self.answers = {name: delay + takes[name] for name, delay in delays.items()}
        self.first = min(self.answers.values())
        self.winner = min(self.answers, key=self.answers.__getitem__)
        # A hedge is due only if no token came by then: strictly.
        self.started = {name: delay for name, delay in delays.items() if delay == 0 or self.first > delay}


def _learn(planner: Planner, loop: Loop, race: _Race, prompt_tokens: int, tokens: int) -> None:
    """As the service does when a stream is over. A server that lost is heard until then, a device that lost is not."""
    observe = planner.estimates.observe
    rate = loop.server_rate if race.winner == SERVER else loop.device_rate
    over = race.first + loop.answer_seconds(tokens, rate)
    for name, delay in race.started.items():
        won = name == race.winner
        if won or name == SERVER:
            what = Seen.FIRST_TOKEN if race.answers[name] <= over else Seen.NO_TOKEN
            observe(Observation(what, prompt_tokens, min(race.answers[name], over) - delay, name))
        decoded = min(tokens, UNHINDERED) - 1 if won else 0
        observe(Observation(Seen.DECODED, decoded, decoded / rate, name))
    observe(Observation(Seen.PROMPT, prompt_tokens))
    if tokens:
        observe(Observation(Seen.ANSWER, tokens))
