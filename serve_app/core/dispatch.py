"""Dispatch policies over one cloud endpoint and one device: who starts, and whether the other side joins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from serve_app.core.model import DispatchPlan, EndpointId, Launch
from serve_app.core.threshold import LengthThreshold
from serve_app.core.wait_time import WaitTable


class Policy(Protocol):
    """``u`` is uniform in [0, 1) and the only randomness a policy may use."""

    def decide(self, prompt_tokens: int, u: float) -> DispatchPlan: ...


@dataclass(frozen=True, slots=True)
class Alone:
    """One endpoint serves everything, for the given reason."""

    endpoint: EndpointId
    name: str
    reason: str

    def decide(self, prompt_tokens: int, u: float) -> DispatchPlan:  # noqa: ARG002 - the protocol's signature
        return DispatchPlan((Launch(self.endpoint),), self.name, self.reason)


@dataclass(frozen=True, slots=True)
class WaitTime:
    """DiSCo-D (paper 4): the server starts at once, the device after w(l)."""

    cloud: EndpointId
    device: EndpointId
    waits: WaitTable
    budget: float

    def decide(self, prompt_tokens: int, u: float) -> DispatchPlan:  # noqa: ARG002 - the protocol's signature
        wait = self.waits.wait(prompt_tokens)
        start = f"hedge after {wait:.2f} s" if wait > 0 else "race"
        reason = f"{start}: w(l) for l={prompt_tokens} under b={self.budget:g}"
        return DispatchPlan((Launch(self.cloud), Launch(self.device, wait)), "disco-d", reason)


@dataclass(frozen=True, slots=True)
class Threshold:
    """DiSCo-S (paper 5): short prompts on the device alone, long ones on both sides at once."""

    cloud: EndpointId
    device: EndpointId
    fit: LengthThreshold
    budget: float

    def decide(self, prompt_tokens: int, u: float) -> DispatchPlan:
        where = f"l={prompt_tokens}, l_th={self.fit.threshold:g} under b={self.budget:g}"
        if self.fit.uses_server(prompt_tokens, u):
            launches: tuple[Launch, ...] = (Launch(self.device), Launch(self.cloud))
            return DispatchPlan(launches, "disco-s", f"race: {where}")
        return DispatchPlan((Launch(self.device),), "disco-s", f"device alone: {where}")
