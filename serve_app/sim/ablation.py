"""What moving streams saves, and what the reader notices of it, over prices and modes (paper section 7)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from serve_app.core.cost import Regime, UnitCost
from serve_app.core.latency import EmpiricalTtft, LatencyProfile
from serve_app.core.lengths import LengthDistribution
from serve_app.core.migration import MigrationMode
from serve_app.sim.judge import Knowledge
from serve_app.sim.migration import Floats, MoveRule, Moves, cost, expected_remaining, move
from serve_app.sim.policies import CONTENDERS, DEFAULT
from serve_app.sim.requests import Population
from serve_app.sim.rows import Case
from serve_app.sim.vector import Replay, quantiles, replay

#: USD per token in and out, December 2024: their ratio decides how much prompt a move is worth.
PRICES: Final[Mapping[str, UnitCost]] = {
    "gpt-4o-mini": UnitCost(0.15e-6, 0.60e-6),
    "deepseek-chat": UnitCost(0.14e-6, 0.28e-6),
    "command": UnitCost(1.0e-6, 2.0e-6),
    "llama-3-70b": UnitCost(0.59e-6, 0.79e-6),
}
#: Price of a device's token over that of the server's: lambda times the energy per token, in other words.
RATIOS: Final[Mapping[Regime, tuple[float, ...]]] = {
    Regime.DEVICE_CONSTRAINED: (3.0, 10.0, 30.0),
    Regime.SERVER_CONSTRAINED: (0.2, 0.05, 0.01),
}
BUDGETS: Final = (0.1, 0.5, 0.9)
READER, NETWORK, MAX_TOKENS = 4.8, 0.05, 1024


@dataclass(frozen=True, slots=True)
class Manner:
    """``parking``: the device that lost a race finishes and keeps its prefill."""

    mode: MigrationMode
    parking: bool = False

    @property
    def name(self) -> str:
        return f"{self.mode.value}, parking" if self.parking else self.mode.value


MANNERS: Final[Mapping[Regime, tuple[Manner, ...]]] = {
    Regime.DEVICE_CONSTRAINED: (Manner(MigrationMode.BREAK), Manner(MigrationMode.OVERLAP)),
    Regime.SERVER_CONSTRAINED: (
        Manner(MigrationMode.BREAK),
        Manner(MigrationMode.OVERLAP),
        Manner(MigrationMode.OVERLAP, parking=True),
    ),
}


@dataclass(frozen=True, slots=True)
class Scope:
    """What is varied. ``ratios``: None for those of the regime."""

    budgets: Sequence[float] = BUDGETS
    prices: Sequence[str] = tuple(PRICES)
    ratios: Sequence[float] | None = None

    def settings(self, regime: Regime) -> Iterator[tuple[str, float, Manner]]:
        for prices in self.prices:
            for ratio in RATIOS[regime] if self.ratios is None else self.ratios:
                for manner in MANNERS[regime]:
                    yield prices, ratio, manner


EVERYTHING: Final = Scope()


@dataclass(frozen=True, slots=True)
class Saving:
    """USD per request without and with moves; ``moved``: share of all requests, of which ``abandoned`` in vain.

    delay_num: mean over moved requests. longest_gap: their P99, seconds.
    """

    service: str
    device: str
    overhead: float
    prompts: str
    regime: Regime
    budget: float
    prices: str
    ratio: float
    manner: str
    usd_without: float
    usd_with: float
    moved: float
    abandoned: float
    delay_num: float
    longest_gap: float

    @property
    def saved(self) -> float:
        return 1 - self.usd_with / self.usd_without


def ablate(case: Case, requests: int, seed: int = 0, scope: Scope = EVERYTHING) -> list[Saving]:
    """The default policy, fitted on one half of the service's TTFTs and replayed on the other."""
    rng = np.random.default_rng(seed)
    ttft = rng.permutation(case.service.ttft)
    half = ttft.size // 2
    known = EmpiricalTtft(ttft[:half])
    kept = case.prompts.prompt_tokens <= int(case.lengths.max())
    outputs = np.minimum(np.maximum(case.prompts.output_tokens[kept], 1), MAX_TOKENS)
    population = Population(ttft[half:], case.lengths, outputs, case.device.line)
    knowledge = Knowledge(known, LengthDistribution.of_samples(case.lengths.tolist()), case.device.line)
    fit = CONTENDERS[case.regime][DEFAULT[case.regime]]
    drawn = population.draw(requests, rng)
    handoff = population.draw(requests, rng).server_ttft
    remaining = expected_remaining(outputs, MAX_TOKENS)
    server = LatencyProfile(known, 1e6, case.service.decode_rate)
    device = LatencyProfile(case.device.line, case.device.prefill_rate, case.device.decode_rate)
    savings = []
    for budget in scope.budgets:
        played = replay(drawn, fit(knowledge, budget).delays(drawn.prompt_tokens, drawn.u), case.device.line)
        for prices, ratio, manner in scope.settings(case.regime):
            unit = PRICES[prices]
            costs = unit, UnitCost(unit.prefill * ratio, unit.decode * ratio)
            dear_device = case.regime is Regime.DEVICE_CONSTRAINED
            source, target = (device, server) if dear_device else (server, device)
            dear, cheap = costs[::-1] if dear_device else costs
            rule = MoveRule(manner.mode, READER, NETWORK, source, target, dear, cheap, remaining)
            won = played.device_won == dear_device
            parked = drawn.server_ttft[won] if manner.parking else None
            moves = move(
                rule, drawn.prompt_tokens[won], drawn.output_tokens[won], handoff[won] if dear_device else None, parked
            )
            before = (
                _dispatch(played, drawn.prompt_tokens, costs)
                + np.where(won, dear.decode, cheap.decode) * drawn.output_tokens
            )
            after = before.copy()
            after[won] += cost(rule, moves) - dear.decode * drawn.output_tokens[won]
            savings.append(_saving(case, budget, prices, ratio, manner, before, after, moves))
    return savings


def _dispatch(played: Replay, prompts: np.ndarray, costs: tuple[UnitCost, UnitCost]) -> Floats:
    """USD for prompts, and for the first token of a server that lost: it runs so far before it is cancelled."""
    server, device = costs
    lost = played.server_started & played.device_won
    total: Floats = prompts * (server.prefill * played.server_started + device.prefill * played.device_started)
    return total + server.decode * lost


def _saving(
    case: Case,
    budget: float,
    prices: str,
    ratio: float,
    manner: Manner,
    before: Floats,
    after: Floats,
    moves: Moves,
) -> Saving:
    moved = moves.moved
    gaps = moves.longest_gap[moved]
    return Saving(
        service=case.service.name,
        device=case.device.name,
        overhead=case.overhead,
        prompts=case.prompts.name,
        regime=case.regime,
        budget=budget,
        prices=prices,
        ratio=ratio,
        manner=manner.name,
        usd_without=float(before.mean()),
        usd_with=float(after.mean()),
        moved=float(moved.sum()) / before.size,
        abandoned=float((moved & ~moves.completed).sum()) / before.size,
        delay_num=float(moves.delay_num[moved].mean()) if moved.any() else 0.0,
        longest_gap=quantiles(gaps, (0.99,))[0] if gaps.size else 0.0,
    )
