"""What must be there before anything is installed or started, and the remedy where it is not.

Standard library only, and readable by Python 3.9: on a machine with an old Python this module must be able to say so.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple

OLDEST = (3, 11)
NEWEST = (3, 14)

GIGABYTE = 10**9
#: Bytes. Ray and the other packages take 0.8 GB once installed; the build of llama.cpp and its model 0.5 GB more.
DISK = int(1.2 * GIGABYTE)
DISK_LLAMA = int(2.0 * GIGABYTE)
#: Bytes. A local Ray head with the proxy and three replicas takes about 0.9 GB, each small model 0.3 GB.
MEMORY = int(1.2 * GIGABYTE)
MEMORY_LLAMA = int(1.8 * GIGABYTE)


class Finding(NamedTuple):
    """One thing that was looked at. ``remedy`` is empty when ``ok``."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""


def check_python(version: tuple[int, int], platform: str = sys.platform) -> Finding:
    found = "{}.{}".format(*version)
    if platform == "win32":
        return Finding("Python", False, "Windows", "use WSL2 (`wsl --install`), then run the same command inside it")
    if OLDEST <= version <= NEWEST:
        return Finding("Python", True, found)
    wanted = "{}.{} to {}.{}".format(*OLDEST, *NEWEST)
    install = "brew install python@3.12" if platform == "darwin" else "sudo apt-get install python3 python3-venv"
    return Finding(
        "Python",
        False,
        f"{found}, but {wanted} is needed",
        f"install one (`{install}`, or https://www.python.org/downloads/) and run `make PYTHON=python3.12 ...`",
    )


def check_venv(version: tuple[int, int], has: Callable[[str], bool], platform: str = sys.platform) -> Finding:
    if has("venv") and has("ensurepip"):
        return Finding("venv module", True, "present")
    package = "python{}.{}-venv".format(*version)
    remedy = f"sudo apt-get install {package}" if platform == "linux" else "install Python from https://www.python.org"
    return Finding("venv module", False, "Python came without venv or ensurepip", remedy)


def check_compiler(compiler: str | None, platform: str = sys.platform) -> Finding:
    """``compiler``: the first line of a working C++ compiler's ``--version``, None where there is none."""
    if compiler is not None:
        return Finding("C++ compiler", True, compiler)
    if platform == "darwin":
        remedy = "xcode-select --install"
    else:
        remedy = "sudo apt-get install build-essential (Fedora: sudo dnf install gcc-c++ make)"
    return Finding(
        "C++ compiler",
        False,
        "none found; llama.cpp is compiled once",
        f"{remedy}; or try `make demo`, which needs no compiler",
    )


def check_disk(free: int, needed: int, where: str) -> Finding:
    detail = f"{free / GIGABYTE:.1f} GB free at {where}"
    if free >= needed:
        return Finding("disk", True, detail)
    return Finding("disk", False, f"{detail}, {needed / GIGABYTE:.1f} GB are needed", "free some space there")


def check_memory(available: int | None, needed: int) -> Finding:
    if available is None:
        return Finding("memory", True, "not known on this system")
    detail = f"{available / GIGABYTE:.1f} GB available"
    if available >= needed:
        return Finding("memory", True, detail)
    return Finding(
        "memory", False, f"{detail}, {needed / GIGABYTE:.1f} GB are needed", "close other programs, or use `make demo`"
    )


def check_port(host: str, port: int) -> Finding:
    name = f"port {port}"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As a server would: a port whose last owner's connections linger is free all the same.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except PermissionError:
            return Finding(name, False, "this user may not listen there", "choose a port above 1023 with --port")
        except OSError as error:
            return Finding(
                name,
                False,
                f"cannot listen on {host}:{port}: {error.strerror}",
                f"stop the program that uses it (`lsof -i :{port}` names it), or choose another with --port "
                '(`make serve ARGS="--port 8010"`)',
            )
    return Finding(name, True, f"free on {host}")


def cxx_version(environ: Mapping[str, str] = os.environ) -> str | None:
    """Asks the compiler itself: on macOS a stub answers to the name until the command line tools are installed."""
    chosen = environ.get("CXX")
    for name in [chosen] if chosen else ["c++", "g++", "clang++"]:
        path = shutil.which(name)
        if path is None:
            continue
        try:
            result = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
        except (OSError, subprocess.TimeoutExpired):
            continue
        if result.returncode == 0:
            return (result.stdout.splitlines() or [path])[0]
    return None


def available_memory(meminfo: str = "/proc/meminfo", cgroup: str = "/sys/fs/cgroup") -> int | None:
    """Bytes this process may still take: the system's, cut by the container's limit; None where neither is known."""
    bounds: list[int] = []
    try:
        with open(meminfo, encoding="ascii") as file:
            bounds.extend(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
    except OSError:
        pass
    try:
        with open(os.path.join(cgroup, "memory.max"), encoding="ascii") as file:
            limit = file.read().strip()
        with open(os.path.join(cgroup, "memory.current"), encoding="ascii") as file:
            used = int(file.read())
        with open(os.path.join(cgroup, "memory.stat"), encoding="ascii") as file:
            # Cached files count as used, but give way to whoever needs the memory.
            used -= sum(int(line.split()[1]) for line in file if line.startswith("inactive_file "))
        if limit != "max":
            bounds.append(max(0, int(limit) - used))
    except (OSError, ValueError):
        pass
    if bounds:
        return min(bounds)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def examine(
    directory: str, needs_compiler: bool, install_pending: bool, host: str | None, port: int | None
) -> list[Finding]:
    """Look at this machine. ``port`` None: nothing will listen. A finished installation needs no compiler or space."""
    version = sys.version_info[:2]
    findings = [check_python(version)]
    if install_pending:
        findings.append(check_venv(version, lambda name: importlib.util.find_spec(name) is not None))
        if needs_compiler:
            findings.append(check_compiler(cxx_version()))
        findings.append(
            check_disk(shutil.disk_usage(directory).free, DISK_LLAMA if needs_compiler else DISK, directory)
        )
    if port is not None:
        findings.append(check_memory(available_memory(), MEMORY_LLAMA if needs_compiler else MEMORY))
        findings.append(check_port(host or "127.0.0.1", port))
    return findings
