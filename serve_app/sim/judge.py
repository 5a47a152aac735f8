"""One split of one row of the evaluation: policies are fitted on one half of a service's TTFTs, judged on the other.

Every judged T_s meets every prompt length, as often as that length is likely, so that all policies face the same draws
and the baselines are exact expectations instead of samples. The distribution of lengths is taken as known.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from serve_app.core.cost import Regime
from serve_app.core.latency import EmpiricalTtft, LinearTtft
from serve_app.core.lengths import LengthDistribution
from serve_app.core.schedule import Schedule
from serve_app.sim.bounds import Curve, Floats, best_share, best_waits, clairvoyant
from serve_app.sim.requests import Requests
from serve_app.sim.tail_bounds import least_with_races, least_with_waits
from serve_app.sim.vector import replay

#: Prompt lengths that are told apart, at most: groups with equal shares of requests and tokens.
LENGTHS: Final = 64
TAIL: Final = 0.99


class Reading(StrEnum):
    """What the paper's random baseline does with the requests it chose for the constrained side."""

    EXCLUSIVE = "exclusive"
    CONCURRENT = "concurrent"


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What a policy may be fitted to: F, p(l) and T_d(l)."""

    ttft: EmpiricalTtft
    lengths: LengthDistribution
    device: LinearTtft


@dataclass(frozen=True, slots=True)
class Played:
    """Seconds. spent: share of prompt tokens that the constrained side prefilled; won: of requests that it won.

    ttft: T_s by length, row by row.
    """

    ttft: Floats
    mean: float
    p99: float
    spent: float
    won: float


def told_apart(prompts: NDArray[np.int64]) -> LengthDistribution:
    """At most ``LENGTHS`` lengths, each for its neighbours."""
    strata = LengthDistribution.of_samples(prompts).strata(LENGTHS)
    return LengthDistribution(np.rint(strata.mean).astype(np.int64), strata.probabilities)


class Bench:
    """``ttft``: T_s as measured, halved at random by ``seed``."""

    def __init__(
        self, ttft: Floats, lengths: LengthDistribution, device: LinearTtft, regime: Regime, seed: int
    ) -> None:
        rng = np.random.default_rng(seed)
        rows = rng.permutation(ttft.size)
        known, unseen = np.split(rows, [ttft.size // 2])
        self.knowledge = Knowledge(EmpiricalTtft(ttft[known]), lengths, device)
        self.regime = regime
        self.device = device
        #: Which measurements are judged, ascending in T_s.
        self.judged = unseen[np.argsort(ttft[unseen], kind="stable")]
        self.server = ttft[self.judged]
        self.prompts = lengths.lengths
        #: Probability of each length.
        self.chance = lengths.probabilities
        self._tokens: Floats = self.prompts.astype(np.float64)
        self._answers: Floats = device.slope * self._tokens + device.intercept
        shape = (self.server.size, self.prompts.size)
        server, phone = np.broadcast_to(self.server[:, None], shape), np.broadcast_to(self._answers, shape)
        #: TTFTs of the two sides alone, by T_s and length.
        self.cheap: Floats = server if regime is Regime.DEVICE_CONSTRAINED else phone
        self.dear: Floats = phone if regime is Regime.DEVICE_CONSTRAINED else server
        evenly = (np.arange(self.server.size) + 0.5) / self.server.size
        u = rng.permuted(np.broadcast_to(evenly[:, None], shape), axis=0)
        self.requests = Requests(
            np.broadcast_to(self.prompts, shape).ravel(), np.ones(u.size, dtype=np.int64), server.ravel(), u.ravel()
        )
        bound = best_waits if regime is Regime.DEVICE_CONSTRAINED else best_share
        self.optimum: Curve = bound(self.server, self._tokens, self._answers, self.chance)
        self.oracle: Curve = clairvoyant(self.cheap, self.dear, self._tokens, self.chance)
        self._equal = np.ones(self.server.size)
        self._stochastic = {
            Reading.EXCLUSIVE: _Mixture(self.cheap, self.dear, self.chance),
            Reading.CONCURRENT: _Mixture(self.cheap, np.minimum(self.cheap, self.dear), self.chance),
        }

    def play(self, schedule: Schedule) -> Played:
        requests = self.requests
        played = replay(requests, schedule.delays(requests.prompt_tokens, requests.u), self.device)
        ttft = played.ttft.reshape(self.cheap.shape)
        tokens = self.prompts * self.chance
        spent = played.started(self.regime).reshape(ttft.shape).mean(axis=0) @ tokens / tokens.sum()
        p99 = self.p99(ttft, self._equal[None])[0]
        dear_won = played.device_won == (self.regime is Regime.DEVICE_CONSTRAINED)
        won = dear_won.reshape(ttft.shape).mean(axis=0) @ self.chance
        return Played(ttft, float(ttft.mean(axis=0) @ self.chance), p99, float(spent), float(won))

    def p99(self, ttft: Floats, weights: Floats) -> list[float]:
        """Of TTFTs by T_s and length, for each row of ``weights``, which weighs the judged T_s."""
        values = ttft.ravel()
        order = np.argsort(values)
        row, chance = order // self.prompts.size, self.chance[order % self.prompts.size]
        return [float(values[order[_reach(weight[row] * chance, TAIL)]]) for weight in weights]

    @property
    def everything_raced(self) -> float:
        """Mean TTFT in seconds if every request races: what no spend can improve on."""
        return float(np.minimum(self.cheap, self.dear).mean(axis=0) @ self.chance)

    def least_p99(self, share: float) -> float:
        """Seconds; no schedule that spends ``share`` of the prompt tokens on these draws has a lower one."""
        least = least_with_waits if self.regime is Regime.DEVICE_CONSTRAINED else least_with_races
        return least(self.server, self._tokens, self._answers, self.chance, share, 1 - TAIL)

    def stochastic_mean(self, reading: Reading, share: float) -> float:
        """Of the random baseline that spends ``share``: every request is chosen with this probability."""
        return self._stochastic[reading].mean(share)

    def stochastic_p99(self, reading: Reading, share: float, weights: Floats | None = None) -> float:
        """``weights``: of each judged T_s; equal if not given."""
        return self._stochastic[reading].quantile(TAIL, share, weights)


class _Mixture:
    """One of two outcomes for each cell (T_s by length), the second one with a given probability."""

    def __init__(self, usual: Floats, chosen: Floats, chance: Floats) -> None:
        values = np.concatenate([usual.ravel(), chosen.ravel()])
        order = np.argsort(values)
        self._values = values[order]
        self._chosen = order >= usual.size
        self._row = (order % usual.size) // usual.shape[1]
        self._chance = chance[order % usual.shape[1]]
        self._means = float(usual.mean(axis=0) @ chance), float(chosen.mean(axis=0) @ chance)

    def mean(self, share: float) -> float:
        return (1 - share) * self._means[0] + share * self._means[1]

    def quantile(self, q: float, share: float, weights: Floats | None) -> float:
        mass = np.where(self._chosen, share, 1 - share) * self._chance
        if weights is not None:
            mass = mass * weights[self._row]
        return float(self._values[_reach(mass, q)])


def _reach(mass: Floats, q: float) -> int:
    """Rank of the first value at which the share ``q`` of the mass is reached."""
    total = np.cumsum(mass)
    return min(int(np.searchsorted(total, q * total[-1] * (1 - 1e-12))), mass.size - 1)
