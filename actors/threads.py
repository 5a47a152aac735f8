"""CPU threads for engines that compute on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from serve_app.engine_settings import LlamaCppEngineSettings, ShapedEngineSettings, VllmEngineSettings
from serve_app.settings import EndpointSettings

CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def available_cores(quota_file: Path = CGROUP_QUOTA) -> int:
    """Whole cores this process may use: the scheduler's affinity, cut by a cgroup quota; at least 1.

    More threads than that do not merely share the cores, they wait for each other at every barrier of the engine.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    try:
        quota, period = quota_file.read_text("ascii").split()
        cores = affinity if quota == "max" else int(quota) // int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return affinity
    return max(1, min(affinity, cores))


def cpu_engine(endpoint: EndpointSettings) -> LlamaCppEngineSettings | VllmEngineSettings | None:
    """The engine that computes on the cores of the endpoint's machine, if one does."""
    engine = endpoint.engine.engine if isinstance(endpoint.engine, ShapedEngineSettings) else endpoint.engine
    if isinstance(engine, LlamaCppEngineSettings):
        return engine
    return engine if isinstance(engine, VllmEngineSettings) and endpoint.placement.num_gpus == 0 else None


def threads_per_engine(endpoints: Iterable[EndpointSettings], cores: int) -> int:
    """max(1, (cores - 1) // local engines): one core stays for the router, engines never oversubscribe the rest."""
    local = sum(e.placement.replicas for e in endpoints if cpu_engine(e) and not e.placement.label_selector)
    return max(1, (cores - 1) // max(1, local))
