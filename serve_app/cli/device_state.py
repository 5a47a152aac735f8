"""What a device can say of itself: from Termux on a phone, or from the system's own sensors."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from typing import Any, Final

import psutil

#: Termux' add-on API, where a phone has it.
_TERMUX: Final = "termux-battery-status"
_PATIENCE: Final = 10.0

#: Sensors that feel what a processor does, by what Linux calls their drivers.
_PROCESSOR: Final = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "acpitz", "soc_thermal")


def device_state() -> dict[str, Any]:
    """``battery`` in [0, 1], ``charging`` and ``temperature_celsius``, as far as they are known."""
    if shutil.which(_TERMUX) is not None and (said := _termux()):
        return said
    state = battery_of(psutil.sensors_battery())
    # Linux alone has them.
    sensors: Mapping[str, Iterable[Any]] = getattr(psutil, "sensors_temperatures", dict)()
    heat = processor_heat(sensors)
    return state if heat is None else state | {"temperature_celsius": heat}


def battery_of(battery: Any) -> dict[str, Any]:
    """Of psutil's reading; None: this machine has no battery, so it runs on the mains."""
    if battery is None:
        return {"charging": True}
    state: dict[str, Any] = {"battery": min(1.0, max(0.0, battery.percent / 100))}
    return state if battery.power_plugged is None else state | {"charging": bool(battery.power_plugged)}


def processor_heat(sensors: Mapping[str, Iterable[Any]]) -> float | None:
    """Degrees Celsius of the hottest of the processor's sensors; None where there is none."""
    readings = [reading.current for driver in _PROCESSOR for reading in sensors.get(driver, ())]
    return max(readings, default=None)


def termux_state(text: str) -> dict[str, Any]:
    """Of what ``termux-battery-status`` prints; empty where that is no such thing."""
    try:
        said = json.loads(text)
        state: dict[str, Any] = {"battery": min(1.0, max(0.0, float(said["percentage"]) / 100))}
        state["charging"] = str(said["plugged"]).upper() != "UNPLUGGED"
        state["temperature_celsius"] = float(said["temperature"])
    except (ValueError, TypeError, KeyError):
        return {}
    return state


def _termux() -> dict[str, Any]:
    try:
        run = subprocess.run([_TERMUX], capture_output=True, text=True, timeout=_PATIENCE, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return {}
    return termux_state(run.stdout)
