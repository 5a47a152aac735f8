"""Traces that need no download: drawn from quantile profiles that ship with the package, each with its source."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from actors.engines.profiles import CloudProfile, DeviceProfile, known_profiles, load_profile
from serve_app.sim.tables import BadInput
from serve_app.sim.traces import (
    ArrivalTrace,
    Device,
    LengthTrace,
    ServiceTrace,
    own_arrivals,
    own_device,
    own_lengths,
    own_service,
)

#: Equally likely values that stand for a profile's distribution.
_VALUES: Final = 1000

#: The devices of the paper's evaluation with their rates (unverified, paper section 9), intercepts left open.
PAPER_DEVICES: Final = ("pixel7pro-bloom-1.1b", "pixel7pro-bloom-560m", "xiaomi14-qwen1.5-0.5b")


def service_names() -> tuple[str, ...]:
    return tuple(name for name in known_profiles() if isinstance(load_profile(name), CloudProfile))


def device_names() -> tuple[str, ...]:
    return tuple(name for name in known_profiles() if isinstance(load_profile(name), DeviceProfile))


def prompt_names() -> tuple[str, ...]:
    return tuple(_read()["prompts"])


def arrival_names() -> tuple[str, ...]:
    return tuple(_read()["arrivals"])


def measured(name: str) -> ServiceTrace:
    """A profile as if it were the trace it came from: as many TTFTs as were measured."""
    profile = load_profile(name)
    assert isinstance(profile, CloudProfile)
    ttft = np.array(profile.ttft_samples(profile.provenance.samples or _VALUES))
    return ServiceTrace(name, ttft, profile.decode_rate, profile.provenance.source)


def service(name: str) -> ServiceTrace:
    """A shipped profile by its name, or the user's own CSV by its path. Raises ``BadInput``."""
    if name in service_names():
        profile = load_profile(name)
        assert isinstance(profile, CloudProfile)
        ttft = np.array(profile.ttft_samples(_VALUES))
        return ServiceTrace(name, ttft, profile.decode_rate, profile.provenance.source)
    return own_service(_path(name, "--service", service_names()))


def device(name: str) -> Device:
    """As ``service``. A profile's intercept was not measured; see its source."""
    if name in device_names():
        profile = load_profile(name)
        assert isinstance(profile, DeviceProfile)
        return Device(name, profile.prefill_rate, profile.decode_rate, profile.intercept, profile.provenance.source)
    return own_device(_path(name, "--device", device_names()))


def paper_device(name: str, overhead: float) -> Device:
    """One of ``PAPER_DEVICES`` with ``overhead`` seconds beyond prefill and the first decode step."""
    chosen = device(name)
    return replace(chosen, intercept=overhead + 1 / chosen.decode_rate)


def prompts(name: str, option: str = "--prompts") -> LengthTrace:
    """As ``service``; ``option`` is blamed. Prompts and answers of a profile are drawn independently of each other."""
    document = _read()
    if name in document["prompts"]:
        entry = document["prompts"][name]
        # The answers in an order of their own, the same one every time.
        order = np.random.default_rng(0).permutation(_VALUES)
        lengths = [
            np.maximum(1, np.rint(_values(document, entry[field]))).astype(np.int64)
            for field in ("prompt_tokens", "output_tokens")
        ]
        return LengthTrace(name, lengths[0], lengths[1][order], entry["source"])
    return own_lengths(_path(name, option, prompt_names()))


def arrivals(name: str) -> ArrivalTrace:
    """As ``service``: a profile's gaps in an arbitrary order, 1 on average."""
    document = _read()
    if name in document["arrivals"]:
        entry = document["arrivals"][name]
        gaps = np.random.default_rng(0).permutation(_values(document, entry["gaps"]))
        return ArrivalTrace(name, np.concatenate([[0.0], np.cumsum(gaps / gaps.mean())]), entry["source"])
    return own_arrivals(_path(name, "--arrivals", tuple(document["arrivals"])))


def _path(name: str, option: str, known: tuple[str, ...]) -> Path:
    path = Path(name).expanduser()
    if not path.is_file() and path.suffix != ".csv":
        raise BadInput(f"{option}: no profile and no file is named {name}; profiles: {', '.join(known)}")
    return path


def _values(document: Any, quantiles: list[float]) -> NDArray[np.float64]:
    middles = (np.arange(_VALUES) + 0.5) / _VALUES
    return np.interp(middles, document["probabilities"], quantiles)


def _read() -> Any:
    return json.loads(files("serve_app.sim").joinpath("profiles.json").read_text("utf-8"))
