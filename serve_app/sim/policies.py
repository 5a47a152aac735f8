"""The policies that are compared, by name: how each is fitted to what is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from serve_app.core.baselines import DEVICE_ONLY, SERVER_ONLY, stochastic
from serve_app.core.cost import Regime
from serve_app.core.model import EndpointKind
from serve_app.core.optimal_threshold import fit_optimal_threshold
from serve_app.core.optimal_waits import fit_optimal_waits
from serve_app.core.schedule import Schedule
from serve_app.core.threshold import fit_threshold
from serve_app.core.wait_time import fit_waits
from serve_app.sim.judge import Knowledge

#: Knowledge and the budget b to a schedule.
Fit: TypeAlias = Callable[[Knowledge, float], Schedule]

DISCO_D, DISCO_D_01, DISCO_D_STAR = "disco-d", "disco-d, alpha .01", "disco-d*"
DISCO_S, DISCO_S_STAR, DISCO_S_MEAN = "disco-s", "disco-s*", "disco-s*, mean only"


def _paper_waits(tail_share: float) -> Fit:
    return lambda known, budget: fit_waits(known.ttft, known.lengths, budget, tail_share)


def _races(*, tail_guard: bool) -> Fit:
    return lambda known, budget: fit_optimal_threshold(
        known.ttft, known.lengths, known.device, budget, tail_guard=tail_guard
    )


#: Policies of the evaluation by regime, the paper's first.
CONTENDERS: Final[Mapping[Regime, Mapping[str, Fit]]] = {
    Regime.DEVICE_CONSTRAINED: {
        DISCO_D: _paper_waits(0.05),
        DISCO_D_01: _paper_waits(0.01),
        DISCO_D_STAR: lambda known, budget: fit_optimal_waits(known.ttft, known.lengths, known.device, budget),
    },
    Regime.SERVER_CONSTRAINED: {
        DISCO_S: lambda known, budget: fit_threshold(known.lengths, budget),
        DISCO_S_STAR: _races(tail_guard=True),
        DISCO_S_MEAN: _races(tail_guard=False),
    },
}

#: Whom a policy must not be slower than.
PEERS: Final[Mapping[str, str]] = {DISCO_S_STAR: DISCO_S}

#: What serves by default.
DEFAULT: Final[Mapping[Regime, str]] = {
    Regime.DEVICE_CONSTRAINED: DISCO_D_STAR,
    Regime.SERVER_CONSTRAINED: DISCO_S_STAR,
}

_CONSTRAINED: Final = {
    Regime.DEVICE_CONSTRAINED: EndpointKind.DEVICE,
    Regime.SERVER_CONSTRAINED: EndpointKind.CLOUD,
}


def _chance(regime: Regime, *, concurrent: bool) -> Fit:
    return lambda _, budget: stochastic(_CONSTRAINED[regime], budget, concurrent=concurrent)


def baselines(regime: Regime) -> dict[str, Fit]:
    """What a policy is compared with; those that use one side only ignore the budget."""
    letter = "d" if regime is Regime.DEVICE_CONSTRAINED else "s"
    return {
        "server only": lambda *_: SERVER_ONLY,
        "device only": lambda *_: DEVICE_ONLY,
        f"stoch-{letter}, exclusive": _chance(regime, concurrent=False),
        f"stoch-{letter}, concurrent": _chance(regime, concurrent=True),
    }
