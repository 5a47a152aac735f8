"""What tokens cost (paper section 2): API prices on one side, energy at an exchange rate on the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from serve_app.core.model import EndpointId


class Regime(StrEnum):
    """Which side's use the budget limits."""

    DEVICE_CONSTRAINED = "device-constrained"
    SERVER_CONSTRAINED = "server-constrained"


@dataclass(frozen=True, slots=True)
class UnitCost:
    """USD per prefilled token (c^p) and per decoded token (c^d)."""

    prefill: float
    decode: float


def device_unit_cost(prefill_joules: float, decode_joules: float, usd_per_joule: float) -> UnitCost:
    """C_d(l, n) = lambda (e_p l + e_d n): joules per token times the exchange rate lambda, USD per joule."""
    return UnitCost(prefill_joules * usd_per_joule, decode_joules * usd_per_joule)


@dataclass(frozen=True, slots=True)
class CostModel:
    """Unit costs of every endpoint; those in ``free_if_cancelled`` do not charge what they were told to stop."""

    unit: Mapping[EndpointId, UnitCost]
    free_if_cancelled: frozenset[EndpointId] = frozenset()

    def cost(self, endpoint: EndpointId, prompt_tokens: int, output_tokens: int, *, cancelled: bool = False) -> float:
        """USD."""
        if cancelled and endpoint in self.free_if_cancelled:
            return 0.0
        unit = self.unit[endpoint]
        return unit.prefill * prompt_tokens + unit.decode * output_tokens


def regime_of(device: UnitCost, server: UnitCost) -> Regime:
    """The dear side is the constrained one; where the ranges overlap, the one with the dearer decode."""
    if min(device.prefill, device.decode) > max(server.prefill, server.decode):
        return Regime.DEVICE_CONSTRAINED
    if min(server.prefill, server.decode) > max(device.prefill, device.decode):
        return Regime.SERVER_CONSTRAINED
    return Regime.DEVICE_CONSTRAINED if device.decode > server.decode else Regime.SERVER_CONSTRAINED


def mean_unit_cost(units: Sequence[UnitCost]) -> UnitCost:
    """What a side's endpoints cost on average; at least one."""
    return UnitCost(sum(u.prefill for u in units) / len(units), sum(u.decode for u in units) / len(units))
