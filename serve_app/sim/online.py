"""The planner and the budget as they serve, request by request: they know only what they have seen so far.

The production classes decide; only the endpoints are replaced by draws. Nothing queues, and nothing is streamed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from serve_app.core.budget import TokenBudget
from serve_app.core.cost import CostModel, Regime, UnitCost
from serve_app.core.estimates import Observation, Seen
from serve_app.core.latency import EmpiricalTtft, LatencyProfile, LinearTtft
from serve_app.core.model import EndpointInfo, EndpointKind
from serve_app.core.planner import Planner, PlannerConfig
from serve_app.core.schedule import NEVER
from serve_app.sim.requests import Requests

_SERVER: Final = EndpointInfo("server", EndpointKind.CLOUD, "trace", 1 << 20)
_DEVICE: Final = EndpointInfo("device", EndpointKind.DEVICE, "trace", 1 << 20)
_FREE: Final = CostModel({_SERVER.id: UnitCost(0.0, 0.0), _DEVICE.id: UnitCost(0.0, 0.0)})

#: Seconds between two requests: so many come before a fit is old by its age that it is old by the news.
_GAP: Final = 0.1

#: Believed of a server of which nothing was seen yet, seconds.
_PRIOR: Final = EmpiricalTtft(np.linspace(0.3, 2.0, 30))


@dataclass(frozen=True, slots=True)
class Served:
    """One entry per request. ttft: seconds. spent: tokens that the constrained side prefilled."""

    ttft: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    spent: NDArray[np.int64]

    @property
    def share(self) -> float:
        """Of all prompt tokens, what was spent."""
        return float(self.spent.sum() / self.prompt_tokens.sum())

    def most_over(self, budget: float, window: int) -> float:
        """The largest excess over ``budget`` of the share spent in ``window`` consecutive requests."""
        spent, prompts = (np.append(0, np.cumsum(tokens)) for tokens in (self.spent, self.prompt_tokens))
        shares = (spent[window:] - spent[:-window]) / (prompts[window:] - prompts[:-window])
        return float(shares.max()) - budget


def serve(requests: Requests, device: LinearTtft, regime: Regime, budget: float, window: int = 500) -> Served:
    """The default policy from its first request on. ``window``: observations that the estimates keep."""
    profiles = {
        _SERVER.id: LatencyProfile(_PRIOR, 1e6, 50.0),
        _DEVICE.id: LatencyProfile(device, 1 / device.slope, 20.0),
    }
    planner = Planner(PlannerConfig(regime=regime, budget=budget, window=window), (_SERVER, _DEVICE), _FREE, profiles)
    bucket, observe = TokenBudget(budget), planner.estimates.observe
    ttft, spent = np.empty(len(requests)), np.zeros(len(requests), dtype=np.int64)
    rows = zip(requests.prompt_tokens.tolist(), requests.server_ttft.tolist(), requests.u.tolist(), strict=True)
    for number, (length, server, u) in enumerate(rows):
        observe(Observation(Seen.PROMPT, length))
        bucket.admit(length)
        account = bucket.unreserved()

        def afford(delay: float, length: int = length) -> bool:
            nonlocal account
            reservation = bucket.reserve(length, hedge=delay > 0)
            account = reservation or account
            return reservation is not None

        plan = planner.plan(length, (_SERVER, _DEVICE), number * _GAP, u, afford=afford, share=bucket.planned_share)
        delays = {launch.endpoint: launch.delay for launch in plan.launches}
        server_delay, device_delay = delays.get(_SERVER.id, NEVER), delays.get(_DEVICE.id, NEVER)
        ttft[number] = min(server_delay + server, device_delay + device.predict(length))
        # The server runs to its first token even where it lost, so that slow answers are seen as often as they happen.
        if server_delay < NEVER:
            observe(Observation(Seen.FIRST_TOKEN, length, server, _SERVER.id))
        ran = server_delay < NEVER if regime is Regime.SERVER_CONSTRAINED else server > device_delay
        spent[number] = length if ran or (device_delay == 0 and regime is Regime.DEVICE_CONSTRAINED) else 0
        account.settle(int(spent[number]))
    return Served(ttft, requests.prompt_tokens, spent)
