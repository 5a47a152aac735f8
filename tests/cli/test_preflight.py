"""What is looked at before anything starts: each finding, and the remedy where it is bad."""

from __future__ import annotations

import ast
import os
import socket
import stat
import sys
from pathlib import Path

import pytest

from serve_app.cli import bootstrap, installer, preflight
from serve_app.cli.preflight import GIGABYTE, Finding

FIRST = (bootstrap, installer, preflight)


@pytest.mark.parametrize("module", FIRST, ids=lambda module: module.__name__)
def test_an_old_python_can_read_what_tells_it_that_it_is_old(module: object) -> None:
    tree = ast.parse(Path(str(module.__file__)).read_text("utf-8"), feature_version=(3, 9))
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            assert name.split(".")[0] in sys.stdlib_module_names or name in {m.__name__ for m in FIRST}
        assert not isinstance(node, ast.Match)


@pytest.mark.parametrize(
    ("version", "platform", "ok", "words"),
    [
        ((3, 10), "linux", False, "3.11 to 3.14"),
        ((3, 11), "linux", True, ""),
        ((3, 14), "darwin", True, ""),
        ((3, 15), "darwin", False, "3.11 to 3.14"),
        ((2, 7), "linux", False, "3.11 to 3.14"),
        ((3, 12), "win32", False, "Windows"),
    ],
)
def test_python(version: tuple[int, int], platform: str, ok: bool, words: str) -> None:
    finding = preflight.check_python(version, platform)
    assert finding.ok is ok
    assert words in finding.detail
    assert bool(finding.remedy) is not ok


def test_remedies_speak_of_the_system_at_hand() -> None:
    assert "brew" in preflight.check_python((3, 9), "darwin").remedy
    assert "apt-get" in preflight.check_python((3, 9), "linux").remedy
    assert "wsl" in preflight.check_python((3, 12), "win32").remedy
    assert "xcode-select" in preflight.check_compiler(None, "darwin").remedy
    assert "build-essential" in preflight.check_compiler(None, "linux").remedy


@pytest.mark.parametrize(
    ("present", "ok"), [({"venv", "ensurepip"}, True), ({"venv"}, False), ({"ensurepip"}, False), (set(), False)]
)
def test_venv_needs_both_of_its_parts(present: set[str], ok: bool) -> None:
    finding = preflight.check_venv((3, 12), present.__contains__, "linux")
    assert finding.ok is ok
    assert ok or "python3.12-venv" in finding.remedy


def test_a_compiler_is_shown_and_its_absence_has_a_way_round() -> None:
    assert preflight.check_compiler("g++ 12") == Finding("C++ compiler", True, "g++ 12")
    assert "make demo" in preflight.check_compiler(None).remedy


@pytest.mark.parametrize(("free", "ok"), [(2 * GIGABYTE, True), (2 * GIGABYTE - 1, False)])
def test_disk_and_memory_at_the_limit(free: int, ok: bool) -> None:
    disk, memory = preflight.check_disk(free, 2 * GIGABYTE, "/here"), preflight.check_memory(free, 2 * GIGABYTE)
    assert (disk.ok, memory.ok) == (ok, ok)
    assert "/here" in disk.detail
    assert bool(disk.remedy) is bool(memory.remedy) is not ok


def test_unknown_memory_is_no_obstacle() -> None:
    assert preflight.check_memory(None, GIGABYTE).ok


# --- the port ---------------------------------------------------------------------------------------------------


def test_a_port_in_use_is_named_with_two_remedies() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        finding = preflight.check_port("127.0.0.1", port)
    assert not finding.ok
    assert f"127.0.0.1:{port}" in finding.detail
    assert f"lsof -i :{port}" in finding.remedy
    assert "--port" in finding.remedy
    assert preflight.check_port("127.0.0.1", port).ok


def test_an_address_of_another_machine_cannot_be_listened_on() -> None:
    assert not preflight.check_port("192.0.2.1", 8000).ok


# --- the machine ------------------------------------------------------------------------------------------------


def compiler(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_the_compiler_itself_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert preflight.cxx_version({}) is None
    compiler(tmp_path / "c++", "exit 1")
    assert preflight.cxx_version({}) is None
    compiler(tmp_path / "clang++", "echo clang 17; echo more")
    assert preflight.cxx_version({}) == "clang 17"
    assert preflight.cxx_version({"CXX": "icpx"}) is None
    compiler(tmp_path / "icpx", ":")
    assert preflight.cxx_version({"CXX": "icpx"}) == str(tmp_path / "icpx")


@pytest.mark.parametrize(
    ("limit", "used", "cached", "available"),
    [
        ("max", 10**9, 0, 4_096_000),
        ("3000000", 1_000_000, 0, 2_000_000),
        ("3000000", 2_500_000, 2_000_000, 2_500_000),
        ("3000000", 3_500_000, 0, 0),
        ("900000000", 0, 0, 4_096_000),
    ],
)
def test_memory_is_the_least_of_system_and_container(
    limit: str, used: int, cached: int, available: int, tmp_path: Path
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 4000 kB\n")
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text(f"{used}\n")
    (tmp_path / "memory.stat").write_text(f"anon 7\ninactive_file {cached}\nactive_file 9\n")
    assert preflight.available_memory(str(tmp_path / "meminfo"), str(tmp_path)) == available


def test_memory_outside_a_container_and_outside_linux(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemAvailable: 4000 kB\n")
    assert preflight.available_memory(str(tmp_path / "meminfo"), str(tmp_path / "none")) == 4_096_000
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert preflight.available_memory(str(tmp_path / "none"), str(tmp_path / "none")) == total


@pytest.mark.parametrize(
    ("needs_compiler", "pending", "port", "names"),
    [
        (True, True, 8000, ["Python", "venv module", "C++ compiler", "disk", "memory", "port 8000"]),
        (False, True, 8000, ["Python", "venv module", "disk", "memory", "port 8000"]),
        (True, False, 8000, ["Python", "memory", "port 8000"]),
        (True, True, None, ["Python", "venv module", "C++ compiler", "disk"]),
        (False, False, None, ["Python"]),
    ],
)
def test_only_what_is_needed_is_looked_at(
    needs_compiler: bool, pending: bool, port: int | None, names: list[str], tmp_path: Path
) -> None:
    found = preflight.examine(str(tmp_path), needs_compiler, pending, "127.0.0.1", port)
    assert [finding.name for finding in found] == names
    assert all(finding.ok or finding.remedy for finding in found)
