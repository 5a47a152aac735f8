"""One service, one device, one set of prompts: what every policy makes of them at the budgets asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from serve_app.core.cost import Regime
from serve_app.core.latency import EmpiricalTtft
from serve_app.core.lengths import LengthDistribution
from serve_app.sim.bounds import Floats
from serve_app.sim.judge import Knowledge
from serve_app.sim.oracle import oracle
from serve_app.sim.policies import CONTENDERS, DEFAULT, baselines
from serve_app.sim.queued import replay_queued
from serve_app.sim.requests import Population
from serve_app.sim.traces import Device, LengthTrace, ServiceTrace
from serve_app.sim.vector import Decide, Summary, by_schedule, quantiles, simulate

ORACLE: Final = "oracle"
#: Shares of the requests at which a distribution of TTFTs is kept.
SHARES: Final = tuple(np.linspace(0.005, 1.0, 200).tolist())


@dataclass(frozen=True, slots=True)
class Scenario:
    """``halved``: policies are fitted to one half of the service's TTFTs and replayed on the other."""

    service: ServiceTrace
    device: Device
    prompts: LengthTrace
    halved: bool
    requests: int
    seed: int

    def split(self) -> tuple[Knowledge, Population]:
        """What a policy may know, and what it meets."""
        known = unseen = self.service.ttft
        if self.halved:
            shuffled = np.random.default_rng(self.seed).permutation(known)
            known, unseen = np.split(shuffled, [(shuffled.size + 1) // 2])
        lengths = LengthDistribution.of_samples(self.prompts.prompt_tokens)
        return (
            Knowledge(EmpiricalTtft(known), lengths, self.device.line),
            Population(unseen, self.prompts.prompt_tokens, self.prompts.output_tokens, self.device.line),
        )


@dataclass(frozen=True, slots=True)
class Point:
    """A policy at a budget. ``distribution``: TTFT in seconds at ``SHARES`` of the requests.

    oracle_share: part of the oracle's gain over concurrent chance; None where there is none.
    """

    regime: Regime
    policy: str
    budget: float
    summary: Summary
    distribution: tuple[float, ...]
    oracle_share: float | None


def steps(regimes: Sequence[Regime], budgets: Sequence[float]) -> int:
    """How often ``study`` reports progress."""
    return len(budgets) * sum(len(baselines(regime)) + len(CONTENDERS[regime]) + 1 for regime in regimes)


def study(
    scenario: Scenario,
    regimes: Sequence[Regime],
    budgets: Sequence[float],
    progress: Callable[[], None] = lambda: None,
) -> list[Point]:
    """All policies on the same requests."""
    knowledge, population = scenario.split()
    points = []
    for regime in regimes:
        for budget in budgets:
            played = {}
            for name in (*baselines(regime), *CONTENDERS[regime], ORACLE):
                decide = decider(name, regime, budget, knowledge)
                blocks = population.blocks(scenario.requests, scenario.seed)
                outcome = simulate(blocks, decide, scenario.device.line, regime)
                played[name] = outcome.summary, tuple(quantiles(outcome.ttft, SHARES))
                progress()
            chance = next(summary.mean for name, (summary, _) in played.items() if name.endswith("concurrent"))
            most = chance - played[ORACLE][0].mean
            points += [
                Point(regime, name, budget, summary, curve, (chance - summary.mean) / most if most > 0 else None)
                for name, (summary, curve) in played.items()
            ]
    return points


def decider(policy: str, regime: Regime, budget: float, knowledge: Knowledge) -> Decide:
    """A baseline, a contender or the oracle, by name."""
    if policy == ORACLE:
        return partial(oracle, device=knowledge.device, regime=regime, budget=budget)
    return by_schedule({**baselines(regime), **CONTENDERS[regime]}[policy](knowledge, budget))


@dataclass(frozen=True, slots=True)
class Queueing:
    """The default policy under a pattern of arrivals, with a device that serves one request at a time.

    Seconds; ``queued``: share of the requests on the device that had to wait for it; ``alone_mean``: without queues.
    """

    pattern: str
    regime: Regime
    budget: float
    mean: float
    p99: float
    queued: float
    alone_mean: float


def queueing(scenario: Scenario, regime: Regime, budget: float, pattern: str, arrivals: Floats) -> Queueing:
    """``arrivals``: seconds of as many requests as there are."""
    knowledge, population = scenario.split()
    requests = population.draw(arrivals.size, np.random.default_rng(scenario.seed))
    schedule = CONTENDERS[regime][DEFAULT[regime]](knowledge, budget)
    delays = schedule.delays(requests.prompt_tokens, requests.u)
    device = scenario.device
    met = replay_queued(requests, delays, arrivals, device.line, device.decode_rate)
    apart = replay_queued(
        requests, delays, np.arange(arrivals.size, dtype=np.float64) * 1e6, device.line, device.decode_rate
    )
    used = met.waited[met.device_started]
    return Queueing(
        pattern,
        regime,
        budget,
        float(met.ttft.mean()),
        quantiles(met.ttft.copy(), (0.99,))[0],
        float((used > 1e-9).mean()) if used.size else 0.0,
        float(apart.ttft.mean()),
    )
