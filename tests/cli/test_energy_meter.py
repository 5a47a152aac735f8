"""Counters of a made-up machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from serve_app.cli.energy_meter import EnergyMeter, NoEnergyCounters

RANGE = 1_000_000_000


def zone(root: Path, folder: str, name: str, microjoules: int = 0) -> Path:
    path = root / folder
    path.mkdir(parents=True)
    (path / "name").write_text(f"{name}\n")
    (path / "max_energy_range_uj").write_text(f"{RANGE}\n")
    (path / "energy_uj").write_text(f"{microjoules}\n")
    return path


def count(package: Path, microjoules: int) -> None:
    (package / "energy_uj").write_text(f"{microjoules}\n")


def test_packages_are_added_up_and_nothing_is_counted_twice(tmp_path: Path) -> None:
    one = zone(tmp_path, "intel-rapl:0", "package-0", 5)
    two = zone(tmp_path, "intel-rapl:1", "package-1", 7)
    others = [
        zone(tmp_path, "intel-rapl:0:0", "core"),
        zone(tmp_path, "intel-rapl:2", "psys"),
        zone(tmp_path, "dtpm", "package-0"),
    ]
    meter = EnergyMeter.find(tmp_path)
    assert meter.source == "RAPL: package-0, package-1"
    assert meter.joules() == 0.0
    count(one, 1_000_005)
    count(two, 500_007)
    for other in others:
        count(other, 77_000_000)
    assert meter.joules() == 1.5
    assert meter.joules() == 1.5


def test_a_counter_that_starts_again_goes_on(tmp_path: Path) -> None:
    package = zone(tmp_path, "intel-rapl:0", "package-0", RANGE - 1_000_000)
    meter = EnergyMeter.find(tmp_path)
    count(package, 1_000_000)
    assert meter.joules() == 2.0
    count(package, 500_000)
    assert meter.joules() == pytest.approx(2.0 + RANGE / 1e6 - 0.5)


@pytest.mark.parametrize("folders", [(), ("dtpm",), ("intel-rapl:0:0",)])
def test_a_platform_without_counters_says_so(tmp_path: Path, folders: tuple[str, ...]) -> None:
    for folder in folders:
        zone(tmp_path, folder, "package-0")
    with pytest.raises(NoEnergyCounters, match="this platform shows no energy counters"):
        EnergyMeter.find(tmp_path)
    with pytest.raises(NoEnergyCounters, match="this platform shows no energy counters"):
        EnergyMeter.find(tmp_path / "none")


def test_counters_that_only_the_administrator_reads_come_with_the_remedy(tmp_path: Path) -> None:
    package = zone(tmp_path, "intel-rapl:0", "package-0")
    # Whoever runs this test may read any file; nobody can read a folder like one.
    (package / "energy_uj").unlink()
    (package / "energy_uj").mkdir()
    with pytest.raises(NoEnergyCounters, match=r"not readable; `sudo chmod a\+r .*intel-rapl:0/energy_uj`"):
        EnergyMeter.find(tmp_path)
