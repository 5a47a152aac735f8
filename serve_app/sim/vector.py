"""Replay of a policy over any number of requests at once: who starts, who answers first, and what it spends."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from serve_app.core.cost import Regime
from serve_app.core.latency import LinearTtft
from serve_app.core.schedule import Delays, Schedule
from serve_app.sim.requests import Requests

#: Decides for a block of requests; a Schedule's ``delays`` and the oracle both fit.
Decide: TypeAlias = Callable[[Requests], Delays]


@dataclass(frozen=True, slots=True)
class Replay:
    """One entry per request. ttft: seconds to the first token, whoever gave it."""

    ttft: NDArray[np.float64]
    server_started: NDArray[np.bool_]
    device_started: NDArray[np.bool_]
    device_won: NDArray[np.bool_]

    def started(self, regime: Regime) -> NDArray[np.bool_]:
        """Whether the constrained side prefilled the prompt."""
        return self.device_started if regime is Regime.DEVICE_CONSTRAINED else self.server_started


def by_schedule(schedule: Schedule) -> Decide:
    return lambda requests: schedule.delays(requests.prompt_tokens, requests.u)


def replay(requests: Requests, delays: Delays, device: LinearTtft) -> Replay:
    """TTFT = min(server delay + T_s, device delay + T_d(l)).

    A side that starts later than the other starts only if no token has come by then (strictly). Raises ``ValueError``
    if a request is started nowhere.
    """
    server_at = delays.server + requests.server_ttft
    device_at = delays.device + (device.slope * requests.prompt_tokens + device.intercept)
    ttft = np.minimum(server_at, device_at)
    if not np.isfinite(ttft).all():
        raise ValueError("delays: every request must start somewhere")
    server_started = (delays.server <= delays.device) | (device_at > delays.server)
    device_started = (delays.device <= delays.server) | (server_at > delays.device)
    return Replay(
        ttft,
        server_started & np.isfinite(delays.server),
        device_started & np.isfinite(delays.device),
        device_at < server_at,
    )


@dataclass(frozen=True, slots=True)
class Summary:
    """Seconds; ``spent``: share of all prompt tokens that the constrained side prefilled; shares of requests."""

    requests: int
    mean: float
    p50: float
    p90: float
    p99: float
    spent: float
    server_started: float
    device_started: float
    device_won: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """``ttft``: seconds, one per request, in single precision and no particular order."""

    summary: Summary
    ttft: NDArray[np.float32]


def simulate(blocks: Iterable[Requests], decide: Decide, device: LinearTtft, regime: Regime) -> Outcome:
    """Replay all blocks under one policy."""
    ttfts: list[NDArray[np.float32]] = []
    total = prompt = spent = 0.0
    server = phone = won = 0
    for requests in blocks:
        played = replay(requests, decide(requests), device)
        ttfts.append(played.ttft.astype(np.float32))
        total += float(played.ttft.sum())
        prompt += float(requests.prompt_tokens.sum())
        spent += float(requests.prompt_tokens @ played.started(regime))
        server += int(np.count_nonzero(played.server_started))
        phone += int(np.count_nonzero(played.device_started))
        won += int(np.count_nonzero(played.device_won))
    ttft = np.concatenate(ttfts)
    p50, p90, p99 = quantiles(ttft, (0.5, 0.9, 0.99))
    count = ttft.size
    summary = Summary(count, total / count, p50, p90, p99, spent / prompt, server / count, phone / count, won / count)
    return Outcome(summary, ttft)


def quantiles(values: NDArray[np.floating], shares: Sequence[float]) -> list[float]:
    """For each share the smallest value that at least this share of the values does not exceed. Reorders ``values``."""
    ranks = [min(max(math.ceil(share * values.size - 1e-9), 1), values.size) - 1 for share in shares]
    values.partition(sorted(set(ranks)))
    return [float(values[rank]) for rank in ranks]
