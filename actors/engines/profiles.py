"""Measured latency of named services and devices, for imitation and as a first guess before any observation.

The figures in profiles.json are derived from public measurements; each profile names its source, date and licence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, TypeAlias

import numpy as np


@dataclass(frozen=True, slots=True)
class Provenance:
    """``samples``: measured requests behind the figures; None where the source does not say."""

    source: str
    date: str
    licence: str
    samples: int | None


@dataclass(frozen=True, slots=True)
class CloudProfile:
    """A service whose TTFT hardly depends on the prompt: quantiles of TTFT and of a request's mean TBT, in seconds."""

    name: str
    probabilities: tuple[float, ...]
    ttft: tuple[float, ...]
    tbt: tuple[float, ...]
    provenance: Provenance

    @property
    def decode_rate(self) -> float:
        """Tokens per second of the median request."""
        return 1 / self.tbt_at(0.5)

    def ttft_at(self, probability: float) -> float:
        return float(np.interp(probability, self.probabilities, self.ttft))

    def tbt_at(self, probability: float) -> float:
        return float(np.interp(probability, self.probabilities, self.tbt))

    def ttft_samples(self, count: int = 100) -> tuple[float, ...]:
        """``count`` equally likely TTFTs: the middles of as many slices of the distribution."""
        return tuple(self.ttft_at((rank + 0.5) / count) for rank in range(count))


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """A device whose TTFT is ``intercept`` + tokens / ``prefill_rate``; rates in tokens per second."""

    name: str
    prefill_rate: float
    decode_rate: float
    intercept: float
    provenance: Provenance

    @property
    def slope(self) -> float:
        """Seconds of TTFT per prompt token."""
        return 1 / self.prefill_rate

    def ttft(self, tokens: float) -> float:
        return self.intercept + tokens * self.slope


Profile: TypeAlias = CloudProfile | DeviceProfile


def known_profiles() -> tuple[str, ...]:
    document = _read()
    return (*document["cloud"], *document["device"])


def load_profile(name: str) -> Profile:
    """Raises ``ValueError`` that lists the known names."""
    document = _read()
    if name in document["cloud"]:
        entry = document["cloud"][name]
        return CloudProfile(
            name,
            probabilities=tuple(document["probabilities"]),
            ttft=tuple(entry["ttft"]),
            tbt=tuple(entry["itl"]),
            provenance=_provenance(entry),
        )
    if name in document["device"]:
        entry = document["device"][name]
        return DeviceProfile(
            name,
            prefill_rate=entry["prefill_rate"],
            decode_rate=entry["decode_rate"],
            intercept=entry["intercept"],
            provenance=_provenance(entry),
        )
    raise ValueError(f"engine.profile: no profile named {name!r}; known: {', '.join(known_profiles())}")


def _provenance(entry: Mapping[str, Any]) -> Provenance:
    return Provenance(entry["source"], entry["date"], entry["licence"], entry["samples"])


def _read() -> Any:
    return json.loads(files("actors.engines").joinpath("profiles.json").read_text("utf-8"))
