"""What a joule of a device is worth: the exchange rate lambda (paper section 2), which the device's state moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Joules per token and 1e9 parameters, for prefill and decode alike: a rule of thumb of MobileLLM (arXiv 2402.14905).
JOULES_PER_TOKEN_AND_BILLION: Final = 0.1

#: Charge below which a battery grows no scarcer: at 5 % a joule is worth twenty times that of a full battery.
EMPTIEST: Final = 0.05

#: Degrees Celsius from which on heat makes a joule dearer, since phones throttle there, and how many more double it.
WARM: Final = 40.0
DOUBLING: Final = 5.0


@dataclass(frozen=True, slots=True)
class DeviceState:
    """What a device reports of itself; None: it does not say. battery: charge in [0, 1]. temperature: Celsius."""

    battery: float | None = None
    charging: bool | None = None
    temperature: float | None = None

    def or_else(self, other: DeviceState) -> DeviceState:
        """What this one does not say, as ``other`` says it. Charge and plug go together: a charge without a word on
        the plug is one that a battery is run on."""
        battery, charging = self.battery, self.charging
        if battery is None and charging is None:
            battery, charging = other.battery, other.charging
        return DeviceState(battery, charging, other.temperature if self.temperature is None else self.temperature)


def exchange_rate(state: DeviceState, battery_usd: float, mains_usd: float) -> float:
    """lambda, USD per joule. ``battery_usd``: of a full battery, or of one that says nothing; ``mains_usd``: on mains.

    A battery's joules are worth 1 / charge: the last tenth ten times as much as the first. Heat multiplies both.
    """
    rate = battery_usd
    if state.charging:
        rate = mains_usd
    elif state.battery is not None:
        rate = battery_usd / max(EMPTIEST, state.battery)
    if state.temperature is not None and state.temperature > WARM:
        rate *= 2.0 ** ((state.temperature - WARM) / DOUBLING)
    return float(rate)
