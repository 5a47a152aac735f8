"""The processor's own energy counters, where Linux shows them: RAPL, of Intel and AMD alike.

One folder for each package under /sys/class/powercap; ``energy_uj`` counts microjoules and starts again after
``max_energy_range_uj``. What counts is the whole processor, whoever keeps it busy; memory, GPUs and screens do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

POWERCAP: Final = Path("/sys/class/powercap")


class NoEnergyCounters(Exception):
    """Why not, in words for the operator."""


class EnergyMeter:
    """Joules of all of the machine's processor packages since the meter was made. Read it at least once a minute."""

    def __init__(self, packages: Sequence[Path]) -> None:
        """Raises ``OSError`` or ``ValueError`` where a counter cannot be read."""
        self._packages = packages
        self._ranges = [_number(package / "max_energy_range_uj") for package in packages]
        self._last = [_number(package / "energy_uj") for package in packages]
        self._microjoules = 0
        self.source = "RAPL: " + ", ".join((package / "name").read_text("ascii").strip() for package in packages)

    @classmethod
    def find(cls, root: Path = POWERCAP) -> EnergyMeter:
        """Raises ``NoEnergyCounters``."""
        packages = sorted(path for path in root.glob("*-rapl:*") if path.name.count(":") == 1 and _is_package(path))
        if not packages:
            raise NoEnergyCounters(
                f"this platform shows no energy counters of its processor ({root} has no RAPL package)"
            )
        try:
            return cls(packages)
        except (OSError, ValueError):
            counters = " ".join(str(package / "energy_uj") for package in packages)
            raise NoEnergyCounters(
                f"the energy counters are not readable; `sudo chmod a+r {counters}` makes them so until the next boot"
            ) from None

    def joules(self) -> float:
        for rank, package in enumerate(self._packages):
            now = _number(package / "energy_uj")
            self._microjoules += (now - self._last[rank]) % self._ranges[rank]
            self._last[rank] = now
        return self._microjoules / 1e6


def _is_package(path: Path) -> bool:
    """Not the whole platform ("psys"), which would count packages twice."""
    try:
        return (path / "name").read_text("ascii").startswith("package")
    except (OSError, ValueError):
        return False


def _number(path: Path) -> int:
    return int(path.read_text("ascii"))
