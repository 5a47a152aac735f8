"""The clairvoyant bound: knows every T_s in advance and spends the same budget. No policy can reach it."""

from __future__ import annotations

import numpy as np

from serve_app.core.cost import Regime
from serve_app.core.latency import LinearTtft
from serve_app.core.schedule import NEVER, Delays
from serve_app.sim.requests import Requests


def oracle(requests: Requests, device: LinearTtft, regime: Regime, budget: float) -> Delays:
    """The constrained side takes part where it gains most seconds per prompt token, while b of all tokens lasts.

    ``budget``: b, the share of these requests' prompt tokens. Greedy by ratio is within one prompt of the best mean.
    """
    answers = device.slope * requests.prompt_tokens + device.intercept
    gain = requests.server_ttft - answers
    if regime is Regime.SERVER_CONSTRAINED:
        gain = -gain
    useful = np.flatnonzero(gain > 0)
    per_token = (gain[useful] / requests.prompt_tokens[useful]).astype(np.float32)
    order = useful[np.argsort(-per_token)]
    spent = np.cumsum(requests.prompt_tokens[order])
    affordable = order[: np.searchsorted(spent, budget * float(requests.prompt_tokens.sum()), side="right")]
    dear = np.full(len(requests), NEVER)
    dear[affordable] = 0.0
    cheap = np.zeros(len(requests))
    return Delays(cheap, dear) if regime is Regime.DEVICE_CONSTRAINED else Delays(dear, cheap)
