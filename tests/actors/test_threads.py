"""Who computes on this machine's cores, and how many of them each gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors.threads import available_cores, cpu_engine, threads_per_engine
from serve_app.core.model import EndpointKind
from serve_app.settings import EndpointSettings


def endpoint(engine: dict[str, Any], **placement: Any) -> EndpointSettings:
    return EndpointSettings.model_validate({"kind": EndpointKind.CLOUD, "engine": engine, "placement": placement})


LLAMA = {"type": "llama_cpp"}
VLLM = {"type": "vllm"}


@pytest.mark.parametrize(
    ("settings", "computes"),
    [
        (endpoint(LLAMA), True),
        (endpoint({"type": "shaped", "profile": "s23-gemma3-1b-q4", "engine": LLAMA}), True),
        (endpoint(VLLM), True),
        (endpoint(VLLM, num_gpus=1), False),
        (endpoint({"type": "simulated"}), False),
    ],
)
def test_who_computes_here(settings: EndpointSettings, computes: bool) -> None:
    assert (cpu_engine(settings) is not None) is computes


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("max 100000", 8),
        ("150000 100000", 1),
        ("50000 100000", 1),
        ("399999 100000", 3),
        ("1600000 100000", 8),
        ("0 100000", 1),
        ("100000 0", 8),
        ("100000", 8),
        ("many 100000", 8),
        ("", 8),
        (None, 8),
    ],
)
def test_a_containers_quota_bounds_the_cores_and_is_rounded_down(
    quota: str | None, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    file = tmp_path / "cpu.max"
    if quota is not None:
        file.write_text(quota)
    assert available_cores(file) == cores


@pytest.mark.parametrize(
    ("endpoints", "cores", "threads"),
    [
        ([endpoint(LLAMA)], 8, 7),
        ([endpoint(LLAMA), endpoint(VLLM)], 8, 3),
        ([endpoint(LLAMA), endpoint(VLLM, num_gpus=1)], 8, 7),
        ([endpoint(LLAMA, replicas=3)], 8, 2),
        ([endpoint(LLAMA), endpoint(LLAMA, label_selector={"cpu-arch": "arm64"})], 8, 7),
        ([endpoint(LLAMA), endpoint(VLLM)], 2, 1),
        ([], 4, 3),
    ],
)
def test_one_core_stays_free_and_the_rest_is_shared(
    endpoints: list[EndpointSettings], cores: int, threads: int
) -> None:
    assert threads_per_engine(endpoints, cores) == threads
