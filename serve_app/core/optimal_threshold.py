"""disco-s*: the prompt lengths for which the server's budget shortens TTFT most (docs/policies.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serve_app.core.handover import PROMPTS_ONLY, Decode
from serve_app.core.hull import Plan, edge_at
from serve_app.core.latency import LinearTtft, ServerTtft
from serve_app.core.lengths import LengthDistribution, Strata
from serve_app.core.schedule import NEVER, Delays, Start

#: Groups of prompt lengths that get shares of their own.
MOST_STRATA: Final = 128
#: The guarded quantile of TTFT is 1 - TAIL, and is predicted to stay below GUARD times that of a random choice with the
#: same budget: so much do 25 samples of a server leave open.
TAIL: Final = 0.01
GUARD: Final = 0.9
#: A price, relative to the largest gain, beside which no gain counts.
_ABOVE_ALL: Final = 1e6


@dataclass(frozen=True, slots=True)
class RaceTable:
    """The device always starts at once, the server as well for requests with u < share(l).

    lengths: of the fit, ascending. A length between two of them is treated like the longer one, one beyond the last
        like the last.
    """

    lengths: NDArray[np.int64]
    shares: NDArray[np.float64]

    def delays(self, prompt_tokens: NDArray[np.int64], u: NDArray[np.float64]) -> Delays:
        row = np.searchsorted(self.lengths[:-1], prompt_tokens)
        return Delays(np.where(u < self.shares[row], 0.0, NEVER), np.zeros(row.size))

    def start(self, prompt_tokens: int, u: float) -> Start:
        row = min(int(self.lengths.searchsorted(prompt_tokens)), self.lengths.size - 1)
        return Start(0.0 if u < self.shares.item(row) else NEVER, 0.0)


def fit_optimal_threshold(
    ttft: ServerTtft,
    lengths: LengthDistribution,
    device: LinearTtft,
    budget: float,
    decode: Decode = PROMPTS_ONLY,
    *,
    tail_guard: bool = True,
) -> RaceTable:
    """Race the server for the lengths with the largest E[(T_d(l) - T_s)+] per token, while p(l) l fits into b E[l].

    ``decode``: with the tokens that the server decodes where it wins, and answers, on their sides of that budget.
    ``tail_guard``: but race as many slow requests as it takes for the predicted P99 to be below ``GUARD`` times that of
    the same budget spent at random. Where no choice of lengths can do that, the longest race, as in DiSCo-S.
    What no race can gain, as far as F knows, is spent too, on the longest prompts without one.
    """
    strata = lengths.strata(MOST_STRATA)
    limit = budget * (lengths.mean + decode.answer)
    answers = device.slope * strata.mean + device.intercept
    each = strata.mean + decode.owned * ttft.answered(answers) if decode.owned else strata.mean
    spent = strata.probabilities * each
    gains = _gains(ttft, answers)
    if not tail_guard:
        return RaceTable(strata.longest, _fill(gains / each, spent, limit))
    guard = _guard(ttft, strata, answers, min(1.0, limit / float(spent.sum())))

    def best(price: float) -> Plan[np.float64]:
        shares = _fill((gains - price * guard.slow) / each, spent, limit)
        raced = strata.probabilities * shares
        return Plan(float(raced @ guard.slow), float(raced @ gains), shares)

    fastest = best(0.0)
    if fastest.cost >= guard.needed:
        return RaceTable(strata.longest, fastest.choice)
    safest = best(-_ABOVE_ALL * float(gains.max()))
    if safest.cost < guard.needed:
        return RaceTable(strata.longest, _fill(strata.mean, spent, limit))
    edge = edge_at(guard.needed, fastest, safest, best)
    return RaceTable(strata.longest, edge.below.choice + edge.share * (edge.above.choice - edge.below.choice))


def _gains(ttft: ServerTtft, answers: NDArray[np.float64]) -> NDArray[np.float64]:
    """E[(T_d - T_s)+] in seconds: what a race saves on average."""
    mean = ttft.mean_excess(np.zeros(1))
    gains = np.maximum(answers - mean + ttft.mean_excess(answers), 0.0)
    # Rounding would leave something for a device that is faster than every sample.
    return np.where(ttft.answered(answers) > 0, gains, 0.0)


def _fill(ratios: NDArray[np.float64], tokens: NDArray[np.float64], limit: float) -> NDArray[np.float64]:
    """Shares of the strata that race: the largest ratios first, the longest of equal ones, the last one in part."""
    order = ratios.argsort(kind="stable")[::-1]
    costs = tokens[order]
    shares = np.empty(costs.size)
    shares[order] = np.clip((limit - np.cumsum(costs)) / costs + 1, 0.0, 1.0)
    return shares


class _Guard(NamedTuple):
    """slow: 1 for strata whose device answers later than the tail may. needed: the share of all requests that must be
    slow ones that race, infinite if no race can help."""

    slow: NDArray[np.float64]
    needed: float


def _guard(ttft: ServerTtft, strata: Strata, answers: NDArray[np.float64], budget: float) -> _Guard:
    """Of P(TTFT > x) = sum of p(l) (1 - share(l) F(x)) over slow l, ``TAIL`` is allowed."""
    tail = GUARD * _random_tail(ttft, strata, answers, budget)
    slow = (answers > tail).astype(np.float64)
    excess = float(strata.probabilities @ slow) - TAIL
    answered = float(ttft.answered(np.array([tail]))[0])
    return _Guard(slow, excess / answered if answered else math.copysign(math.inf, excess))


def _random_tail(ttft: ServerTtft, strata: Strata, answers: NDArray[np.float64], budget: float) -> float:
    """The quantile 1 - ``TAIL`` of TTFT if every request races with probability b: the smallest x with
    P(T_d > x) (1 - b F(x)) <= ``TAIL``."""
    slower = 1 - np.cumsum(strata.probabilities)
    first = int((slower * (1 - budget * ttft.answered(answers)) <= TAIL).argmax())
    # Before the device's answer for this stratum only the server's can end the wait.
    reach = 1 - TAIL / (float(slower[first - 1]) if first else 1.0)
    most = ttft.size / (ttft.size + 1)
    if reach > budget * most:
        return float(answers[first])
    return min(float(answers[first]), ttft.quantile(reach / (budget * most)))
