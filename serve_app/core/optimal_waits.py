"""disco-d*: the waits with the smallest mean TTFT that the device's budget allows (docs/policies.md)."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from serve_app.core.handover import PROMPTS_ONLY, Decode
from serve_app.core.hull import Plan, edge_at
from serve_app.core.latency import LinearTtft, ServerTtft, Waits
from serve_app.core.lengths import LengthDistribution, Strata
from serve_app.core.wait_time import WaitTable

#: Groups of prompt lengths that get waits of their own.
MOST_STRATA: Final = 40


def fit_optimal_waits(
    ttft: ServerTtft, lengths: LengthDistribution, device: LinearTtft, budget: float, decode: Decode = PROMPTS_ONLY
) -> WaitTable:
    """Minimise E[min(T_s, w(l) + T_d(l))] while sum p(l) l P(T_s > w(l)) <= b E[l].

    ``decode``: with the tokens that the device decodes where it wins, and answers, on their sides of that budget.

    Waits never fall with l. A budget beyond what can shorten the mean as far as F knows insures against server TTFTs
    longer than any seen: the device races for the shortest prompts that were left to the server alone.
    """
    strata = lengths.strata(MOST_STRATA)
    waits = ttft.waits()
    gains = np.zeros((strata.mean.size, waits.costs.size))
    deadlines = waits.seconds[1:] + (device.slope * strata.mean + device.intercept)[:, None]
    np.multiply(ttft.mean_excess(deadlines), strata.probabilities[:, None], out=gains[:, 1:])
    spent = np.multiply(strata.tokens[:, None], waits.costs)
    if decode.owned:
        won = 1 - ttft.answered(deadlines)
        spent[:, 1:] += decode.owned * strata.probabilities[:, None] * won
    scores = np.empty(gains.shape)
    rows = np.arange(0, gains.size, waits.costs.size)

    def best(price: float) -> Plan[np.int64]:
        np.multiply(spent, -price, out=scores)
        np.add(scores, gains, out=scores)
        choice = scores.argmax(axis=1)
        chosen = rows + choice
        return Plan(float(spent.take(chosen).sum()), float(gains.take(chosen).sum()), choice)

    limit = budget * (lengths.mean + decode.answer)
    # Without a price, whatever gains at all races.
    everything = np.where(gains[:, -1] > 0, waits.costs.size - 1, 0)
    richest = Plan(float(spent.take(rows + everything).sum()), float(gains[:, -1].sum()), everything)
    if richest.cost <= limit:
        return _table(strata, waits, _insured(spent, richest, limit))
    edge = edge_at(limit, Plan(0.0, 0.0, np.zeros_like(rows)), richest, best)
    return _table(strata, waits, edge.below.choice, edge.above.choice, edge.share)


def _insured(spent: NDArray[np.float64], plan: Plan[np.int64], limit: float) -> NDArray[np.int64]:
    """Shortest first, until the limit is spent; the last one waits as long as it must."""
    race = spent.shape[1] - 1
    already = spent[np.arange(plan.choice.size), plan.choice]
    premiums = spent[:, race] - already
    paid = np.cumsum(premiums)
    whole = int(np.searchsorted(paid, limit - plan.cost, side="right"))
    choice = np.where(np.arange(paid.size) < whole, race, plan.choice)
    if whole < paid.size:
        left = limit - plan.cost - (paid[whole] - premiums[whole])
        choice[whole] = np.searchsorted(spent[whole], already[whole] + left, side="right") - 1
    return choice


def _table(
    strata: Strata,
    waits: Waits,
    choice: NDArray[np.int64],
    eager: NDArray[np.int64] | None = None,
    share: float = 0.0,
) -> WaitTable:
    """Rounding must not let a longer prompt wait less than a shorter one."""
    patient = np.maximum.accumulate(waits.seconds[choice])
    tail = max(float(patient[-1]), float(waits.seconds[1]))
    if eager is None:
        return WaitTable(strata.longest, patient, tail)
    return WaitTable(strata.longest, patient, tail, np.maximum.accumulate(waits.seconds[eager]), share)
