"""One budget over prefill and decode, with the handover in it, against one that cannot count on a handover."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from serve_app.core.cost import Regime
from serve_app.core.handover import Decode
from serve_app.core.optimal_threshold import fit_optimal_threshold
from serve_app.core.optimal_waits import fit_optimal_waits
from serve_app.core.schedule import Schedule
from serve_app.sim.judge import Bench, Knowledge, Played, told_apart
from serve_app.sim.rows import BUDGETS, Case, least_mean_excess, resampled

#: Tokens of an answer, and of those that the constrained side decodes before it hands over.
ANSWER: Final = 340.0
OWNED: Final = 12.0

DecodeFit: TypeAlias = Callable[[Knowledge, float, Decode], Schedule]

_FITS: Final[Mapping[Regime, DecodeFit]] = {
    Regime.DEVICE_CONSTRAINED: lambda known, budget, decode: fit_optimal_waits(
        known.ttft, known.lengths, known.device, budget, decode
    ),
    Regime.SERVER_CONSTRAINED: lambda known, budget, decode: fit_optimal_threshold(
        known.ttft, known.lengths, known.device, budget, decode
    ),
}


@dataclass(frozen=True, slots=True)
class JointRow:
    """``budget``: share of all tokens, prompts and answers, that the constrained side may process.

    joint, separate: mean TTFT in seconds; joint_tokens, separate_tokens: the shares that were spent. In ``separate``,
    an answer that the constrained side begins counts whole, since whether it moves is decided afterwards. slower: lower
    end of the interval by which joint exceeds separate, seconds. ``floor``: mean TTFT in seconds if every request
    races, whatever that takes.
    """

    service: str
    device: str
    overhead: float
    regime: Regime
    budget: float
    joint: float
    separate: float
    joint_tokens: float
    separate_tokens: float
    slower: float
    floor: float

    @property
    def cut(self) -> float:
        return 1 - self.joint / self.separate

    @property
    def largest_cut(self) -> float:
        return 1 - self.floor / self.separate


def play_joint(case: Case, splits: int, budgets: Sequence[float] = BUDGETS) -> list[JointRow]:
    """Both, at every budget, over ``splits`` seeded halvings."""
    lengths = told_apart(case.lengths)
    benches = [Bench(case.service.ttft, lengths, case.device.line, case.regime, seed) for seed in range(splits)]
    draws = resampled(case.service.ttft.size)
    rows = []
    for budget in budgets:
        joint, separate = (_play(benches, budget, Decode(owned, ANSWER)) for owned in (OWNED, ANSWER))
        rows.append(
            JointRow(
                case.service.name,
                case.device.name,
                case.overhead,
                case.regime,
                budget,
                float(np.mean([one.mean for one in joint])),
                float(np.mean([one.mean for one in separate])),
                _tokens(joint, lengths.mean, OWNED),
                _tokens(separate, lengths.mean, ANSWER),
                least_mean_excess(benches, joint, separate, draws),
                float(np.mean([bench.everything_raced for bench in benches])),
            )
        )
    return rows


def _play(benches: Sequence[Bench], budget: float, decode: Decode) -> list[Played]:
    return [bench.play(_FITS[bench.regime](bench.knowledge, budget, decode)) for bench in benches]


def _tokens(played: Sequence[Played], prompt: float, owned: float) -> float:
    """Share of all tokens that the constrained side processed."""
    used = np.mean([one.spent * prompt + one.won * owned for one in played])
    return float(used / (prompt + ANSWER))
