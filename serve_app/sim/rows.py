"""The rows of the evaluation: every policy on one service, device, set of prompts and regime, at every budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from serve_app.core.cost import Regime
from serve_app.sim.bounds import Floats
from serve_app.sim.judge import Bench, Played, Reading, told_apart
from serve_app.sim.policies import CONTENDERS, DEFAULT, PEERS
from serve_app.sim.traces import Device, LengthTrace, ServiceTrace

BUDGETS: Final = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
#: Longest prompt of the evaluation, tokens: what a phone's context holds.
LONGEST_PROMPT: Final = 4096
#: Bootstrap replicates of a P99, and the share of them in an interval.
REPLICATES, CONFIDENCE = 100, 0.95


@dataclass(frozen=True, slots=True)
class Case:
    """``overhead``: seconds of the device's TTFT beyond prefill and first decode step."""

    service: ServiceTrace
    device: Device
    overhead: float
    prompts: LengthTrace
    regime: Regime

    @property
    def lengths(self) -> NDArray[np.int64]:
        return self.prompts.prompt_tokens[self.prompts.prompt_tokens <= LONGEST_PROMPT]


@dataclass(frozen=True, slots=True)
class Figures:
    """One policy on one row, one entry per split. Means and P99s in seconds; ``spent``: its own share of tokens.

    The baselines and bounds are those that spend as much: ``mean_of`` and ``p99_of`` the random baseline by reading,
    ``optimum`` in-sample, ``oracle`` clairvoyant. Of the default policy only, ``least_p99``: of any schedule knowing
    F; ``p99_worse``: lower end of the bootstrap interval of P99 minus the baseline's, by reading, where its mean over
    splits is worse at all.
    """

    mean: Floats
    p99: Floats
    spent: Floats
    mean_of: Mapping[Reading, Floats]
    p99_of: Mapping[Reading, Floats]
    optimum: Floats
    oracle: Floats
    least_p99: Floats | None
    p99_worse: Mapping[Reading, float]

    @property
    def headroom(self) -> float:
        """By how much the optimum beats the concurrent baseline, as a share of the baseline's mean."""
        baseline = self.mean_of[Reading.CONCURRENT]
        return float((baseline - self.optimum).sum() / baseline.sum())

    def capture(self, bound: Floats) -> float:
        """Share of (concurrent baseline -> bound) that the policy gains."""
        baseline = self.mean_of[Reading.CONCURRENT]
        possible = float((baseline - bound).sum())
        return float((baseline - self.mean).sum()) / possible if possible > 0 else 1.0

    def as_json(self) -> dict[str, float]:
        return {
            "mean_s": float(self.mean.mean()),
            "p99_s": float(self.p99.mean()),
            "spent": float(self.spent.mean()),
            "headroom": self.headroom,
            "capture": self.capture(self.optimum),
            "oracle_share": self.capture(self.oracle),
            **{f"mean_cut_{reading.value}": self.mean_cut(reading) for reading in Reading},
            **{f"p99_cut_{reading.value}": self.p99_cut(reading) for reading in Reading},
            **self._largest_p99_cuts(),
        }

    def _largest_p99_cuts(self) -> dict[str, float]:
        if self.least_p99 is None:
            return {}
        return {f"largest_p99_cut_{reading.value}": self.largest_p99_cut(reading) for reading in Reading}

    def mean_cut(self, reading: Reading) -> float:
        return 1 - float(self.mean.sum() / self.mean_of[reading].sum())

    def p99_cut(self, reading: Reading) -> float:
        return 1 - float(self.p99.sum() / self.p99_of[reading].sum())

    def largest_p99_cut(self, reading: Reading) -> float:
        """By any schedule that spends as much; the default policy's only."""
        assert self.least_p99 is not None
        return 1 - float(self.least_p99.sum() / self.p99_of[reading].sum())


@dataclass(frozen=True, slots=True)
class Row:
    """``server_mean``: E[T_s]; ``fixed``: c + 1 / decode, the part of T_d that does not grow; seconds.

    slower_than_peer: lower end of the interval by which a policy's mean exceeds its peer's (``PEERS``), seconds.
    """

    service: str
    device: str
    overhead: float
    prompts: str
    regime: Regime
    budget: float
    server_mean: float
    fixed: float
    figures: Mapping[str, Figures]
    slower_than_peer: Mapping[str, float]

    def as_json(self) -> dict[str, Any]:
        """Means over the splits."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name not in ("figures", "slower_than_peer")}
        return plain | {"policies": {name: figures.as_json() for name, figures in self.figures.items()}}


def play_case(case: Case, splits: int, budgets: Sequence[float] = BUDGETS) -> list[Row]:
    """Every policy that fits the regime, at every budget, over ``splits`` seeded halvings."""
    lengths = told_apart(case.lengths)
    benches = [Bench(case.service.ttft, lengths, case.device.line, case.regime, seed) for seed in range(splits)]
    draws = resampled(case.service.ttft.size)
    return [_row(case, benches, budget, draws) for budget in budgets]


def _row(case: Case, benches: Sequence[Bench], budget: float, draws: Floats) -> Row:
    played = {
        name: [bench.play(fit(bench.knowledge, budget)) for bench in benches]
        for name, fit in CONTENDERS[case.regime].items()
    }
    return Row(
        service=case.service.name,
        device=case.device.name,
        overhead=case.overhead,
        prompts=case.prompts.name,
        regime=case.regime,
        budget=budget,
        server_mean=float(case.service.ttft.mean()),
        fixed=case.device.intercept,
        figures={
            name: _figures(benches, plays, draws if name == DEFAULT[case.regime] else None)
            for name, plays in played.items()
        },
        slower_than_peer={
            name: least_mean_excess(benches, played[name], played[peer], draws)
            for name, peer in PEERS.items()
            if name in played
        },
    )


def _figures(benches: Sequence[Bench], played: Sequence[Played], draws: Floats | None) -> Figures:
    """``draws``: None spares the intervals and the bound of P99."""
    pairs = list(zip(benches, played, strict=True))
    p99 = np.array([one.p99 for one in played])
    p99_of = {
        reading: np.array([bench.stochastic_p99(reading, one.spent) for bench, one in pairs]) for reading in Reading
    }
    return Figures(
        mean=np.array([one.mean for one in played]),
        p99=p99,
        spent=np.array([one.spent for one in played]),
        mean_of={
            reading: np.array([bench.stochastic_mean(reading, one.spent) for bench, one in pairs])
            for reading in Reading
        },
        p99_of=p99_of,
        optimum=np.array([bench.optimum.at(one.spent) for bench, one in pairs]),
        oracle=np.array([bench.oracle.at(one.spent) for bench, one in pairs]),
        least_p99=None if draws is None else np.array([bench.least_p99(one.spent) for bench, one in pairs]),
        p99_worse={
            reading: _least_p99_excess(pairs, reading, draws)
            for reading in Reading
            if draws is not None and p99.mean() > p99_of[reading].mean()
        },
    )


# --- intervals: measurements are drawn again, with replacement; a replicate is a new sample, judged in all splits ---


def resampled(size: int) -> Floats:
    """How often each measurement is in each replicate."""
    return np.random.default_rng(0).multinomial(size, np.full(size, 1 / size), REPLICATES).astype(np.float64)


def _least_p99_excess(pairs: Sequence[tuple[Bench, Played]], reading: Reading, draws: Floats) -> float:
    """Lower end of the interval of P99(policy) - P99(baseline), seconds."""
    excess = np.zeros(REPLICATES)
    for bench, played in pairs:
        weights = draws[:, bench.judged]
        baseline = [bench.stochastic_p99(reading, played.spent, weight) for weight in weights]
        excess += np.array(bench.p99(played.ttft, weights)) - baseline
    return float(np.quantile(excess / len(pairs), (1 - CONFIDENCE) / 2))


def least_mean_excess(
    benches: Sequence[Bench], played: Sequence[Played], peers: Sequence[Played], draws: Floats
) -> float:
    """Lower end of the interval of mean(policy) - mean(peer), seconds."""
    excess = np.zeros(REPLICATES)
    for bench, one, peer in zip(benches, played, peers, strict=True):
        weights = draws[:, bench.judged]
        by_measurement = (one.ttft - peer.ttft) @ bench.chance
        excess += weights @ by_measurement / weights.sum(axis=1)
    return float(np.quantile(excess / len(benches), (1 - CONFIDENCE) / 2))
