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


def name_of(process: psutil.Process) -> str:
    """Empty once it is gone."""
    try:
        return "" if process.status() == psutil.STATUS_ZOMBIE else process.name()
    except psutil.NoSuchProcess:
        return ""


def engine_processes(above: psutil.Process) -> list[psutil.Process]:
    """vLLM's own below another, which may be gone. They are named after what they do, once they do it."""
    try:
        below = above.children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [process for process in below if name_of(process).startswith("VLLM::")]
