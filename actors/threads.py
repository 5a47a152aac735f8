"""CPU threads for engines that compute on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from serve_app.settings import EndpointSettings, LlamaCppEngineSettings, ShapedEngineSettings

CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def available_cores(quota_file: Path = CGROUP_QUOTA) -> int:
    """Whole cores this process may use: the scheduler's affinity, cut by a cgroup quota; at least 1.

    More threads than that do not merely share the cores, they wait for each other at every barrier of the engine.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    try:
        quota, period = quota_file.read_text("ascii").split()
    except (OSError, ValueError):
        return affinity
    return affinity if quota == "max" else max(1, min(affinity, int(quota) // int(period)))


def llama_settings(endpoint: EndpointSettings) -> LlamaCppEngineSettings | None:
    engine = endpoint.engine.engine if isinstance(endpoint.engine, ShapedEngineSettings) else endpoint.engine
    return engine if isinstance(engine, LlamaCppEngineSettings) else None


def threads_per_engine(endpoints: Iterable[EndpointSettings], cores: int) -> int:
    """max(1, (cores - 1) // local engines): one core stays for the router, engines never oversubscribe the rest."""
    local = sum(e.placement.replicas for e in endpoints if llama_settings(e) and not e.placement.label_selector)
    return max(1, (cores - 1) // max(1, local))
