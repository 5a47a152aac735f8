"""Whether the vectorised replay and the production code say the same about the same requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from serve_app.core.cost import Regime, UnitCost
from serve_app.core.migration import MigrationMode
from serve_app.sim.exact import Played, Setting, play
from serve_app.sim.policies import CONTENDERS, DEFAULT
from serve_app.sim.study import Scenario
from serve_app.sim.vector import replay

#: Seconds between two TTFTs that count as the same.
TOLERANCE: Final = 1e-9
_DEAR, _CHEAP = UnitCost(1.5e-6, 6e-6), UnitCost(0.15e-6, 0.6e-6)


@dataclass(frozen=True, slots=True)
class Agreement:
    """``launches``: requests whose sides started differently. ``apart``: largest difference of TTFTs, seconds."""

    regime: Regime
    policy: str
    budget: float
    requests: int
    launches: int
    apart: float
    moved: int
    late_tokens: float

    @property
    def agrees(self) -> bool:
        return self.launches == 0 and self.apart < TOLERANCE

    @property
    def text(self) -> str:
        verdict = "the same" if self.agrees else "NOT the same"
        return (
            f"exact, {self.regime.value}, {self.policy}, b = {self.budget:g}: {verdict} for {self.requests} requests "
            f"({self.launches} other launches, TTFTs within {self.apart:.0e} s); {self.moved} answers moved, "
            f"{self.late_tokens:.2f} late tokens each"
        )


class Vectorised(Protocol):
    """What the simulator says of the same requests, one entry each; seconds."""

    @property
    def ttft(self) -> NDArray[np.float64]: ...

    @property
    def server_started(self) -> NDArray[np.bool_]: ...

    @property
    def device_started(self) -> NDArray[np.bool_]: ...


def differences(exact: Sequence[Played], vector: Vectorised) -> tuple[int, float]:
    """Requests that were launched otherwise, and the seconds by which TTFTs differ at most."""
    server = np.array([one.server_at is not None for one in exact])
    device = np.array([one.device_at is not None for one in exact])
    launches = np.count_nonzero((server != vector.server_started) | (device != vector.device_started))
    return int(launches), float(np.abs(np.array([one.ttft for one in exact]) - vector.ttft).max())


def compare(
    scenario: Scenario, regime: Regime, budget: float, count: int, progress: Callable[[int], None] = lambda _: None
) -> Agreement:
    """The default policy, with moves in overlap, by both."""
    knowledge, population = scenario.split()
    rng = np.random.default_rng(scenario.seed)
    requests = population.draw(count, rng)
    policy = DEFAULT[regime]
    delays = CONTENDERS[regime][policy](knowledge, budget).delays(requests.prompt_tokens, requests.u)
    dear_device = regime is Regime.DEVICE_CONSTRAINED
    setting = Setting(
        device=scenario.device.line,
        server_rate=scenario.service.decode_rate,
        device_rate=scenario.device.decode_rate,
        server_cost=_CHEAP if dear_device else _DEAR,
        device_cost=_DEAR if dear_device else _CHEAP,
        handoff_ttft=population.draw(count, rng).server_ttft,
        mode=MigrationMode.OVERLAP,
    )
    vector = replay(requests, delays, scenario.device.line)
    exact = play(requests, delays, setting, progress)
    launches, apart = differences(exact, vector)
    late = [one.report["delay_num"] for one in exact if one.report["migrations"]]
    return Agreement(
        regime,
        policy,
        budget,
        count,
        launches,
        apart,
        len(late),
        float(np.mean(late)) if late else 0.0,
    )
