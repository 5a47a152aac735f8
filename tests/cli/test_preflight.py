"""Whatever is missing on this machine is named, with a remedy that fits the platform."""

from __future__ import annotations

import ast
import socket
from pathlib import Path

import pytest

from serve_app.cli import bootstrap, installer, preflight
from serve_app.cli.preflight import (
    available_memory,
    check_compiler,
    check_disk,
    check_memory,
    check_port,
    check_python,
    check_venv,
    cxx_version,
)


@pytest.mark.parametrize("module", [bootstrap, installer, preflight])
def test_an_old_python_can_at_least_read_it(module: object) -> None:
    source = Path(str(module.__file__)).read_text("utf-8")  # type: ignore[attr-defined]
    ast.parse(source, feature_version=(3, 9))


@pytest.mark.parametrize(("version", "ok"), [((3, 10), False), ((3, 11), True), ((3, 14), True), ((3, 15), False)])
def test_python(version: tuple[int, int], ok: bool) -> None:
    finding = check_python(version, "linux")
    assert finding.ok is ok
    assert bool(finding.remedy) is not ok


def test_remedies_fit_the_platform() -> None:
    assert "brew" in check_python((3, 9), "darwin").remedy
    assert "apt-get" in check_python((3, 9), "linux").remedy
    assert "WSL2" in check_python((3, 12), "win32").remedy
    assert "xcode-select" in check_compiler(None, "darwin").remedy
    assert "build-essential" in check_compiler(None, "linux").remedy
    assert check_venv((3, 12), lambda name: name != "ensurepip", "linux").remedy.endswith("python3.12-venv")
    assert check_venv((3, 12), lambda name: True, "linux").ok


def test_a_compiler_must_run(tmp_path: Path) -> None:
    stub = tmp_path / "c++"
    stub.write_text("#!/bin/sh\nexit 1\n")
    stub.chmod(0o755)
    assert cxx_version({"CXX": str(stub)}) is None
    stub.write_text("#!/bin/sh\necho a compiler\n")
    assert cxx_version({"CXX": str(stub)}) == "a compiler"
    assert cxx_version({"CXX": str(tmp_path / "absent")}) is None


def test_space_and_memory() -> None:
    assert check_disk(10, 10, "/x").ok
    assert not check_disk(9, 10, "/x").ok
    assert check_memory(10, 10).ok
    assert not check_memory(9, 10).ok
    assert check_memory(None, 10).ok


def test_the_container_limits_memory(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 900 kB\nMemAvailable: 800 kB\n")
    assert available_memory(str(meminfo), str(tmp_path)) == 800 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("100\n")
    assert available_memory(str(meminfo), str(tmp_path)) == 800 * 1024
    (tmp_path / "memory.max").write_text("4196\n")
    assert available_memory(str(meminfo), str(tmp_path)) == 4096


def test_a_port_in_use() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        other.listen()
        finding = check_port("127.0.0.1", port)
        assert not finding.ok
        assert "--port" in finding.remedy
    assert check_port("127.0.0.1", port).ok
