"""vLLM's processes as the system sees them, and waiting for what becomes of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psutil

#: Seconds, on a busy machine. Three processes import vLLM one after the other.
LONGEST_START = 400.0
LONGEST_END = 120.0


def until(condition: Callable[[], Any], limit: float) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.1)


def lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def engines(above: psutil.Process) -> list[psutil.Process]:
    """vLLM's engine processes right below another process."""
    return [process for process in _below(above) if _is_vllms(process)]


def workers(above: psutil.Process) -> list[psutil.Process]:
    """The workers of those engines."""
    return [process for engine in engines(above) for process in _below(engine) if _is_vllms(process)]


def _below(process: psutil.Process) -> list[psutil.Process]:
    """None if it is gone."""
    try:
        return process.children()
    except psutil.NoSuchProcess:
        return []


def _is_vllms(process: psutil.Process) -> bool:
    """They call themselves VLLM:: and what they do, but late, and sometimes the system does not let them."""
    title = title_of(process)
    return title.startswith("VLLM::") or "spawn_main" in title


def title_of(process: psutil.Process) -> str:
    """Its command line, or what it wrote over it; empty once it is gone."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""
