"""From a schedule to endpoints: who starts for one request, and whether the other side joins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from serve_app.core.model import DispatchPlan, EndpointId, Launch
from serve_app.core.schedule import NEVER, Start


class Policy(Protocol):
    """``u`` is uniform in [0, 1) and the only randomness a policy may use."""

    def decide(self, prompt_tokens: int, u: float) -> DispatchPlan: ...


class Starter(Protocol):
    """A schedule, asked about one request. It answers as its ``delays`` would."""

    def start(self, prompt_tokens: int, u: float) -> Start: ...


@dataclass(frozen=True, slots=True)
class Alone:
    """One endpoint serves everything, for the given reason."""

    endpoint: EndpointId
    name: str
    reason: str

    def decide(self, prompt_tokens: int, u: float) -> DispatchPlan:  # noqa: ARG002 - the protocol's signature
        return DispatchPlan((Launch(self.endpoint),), self.name, self.reason)


@dataclass(frozen=True, slots=True)
class Scheduled:
    """One cloud endpoint and one device start when the schedule says so. ``rule``: what it goes by, for reports."""

    cloud: EndpointId
    device: EndpointId
    schedule: Starter
    name: str
    rule: str
    budget: float

    def decide(self, prompt_tokens: int, u: float) -> DispatchPlan:
        server, device = self.schedule.start(prompt_tokens, u)
        first, second, delay = (self.cloud, self.device, device) if server == 0 else (self.device, self.cloud, server)
        launches: tuple[Launch, ...] = (Launch(first),)
        if delay == NEVER:
            how = "cloud alone" if server == 0 else "device alone"
        else:
            launches = (Launch(first), Launch(second, delay))
            how = f"hedge after {delay:.2f} s" if delay else "race"
        reason = f"{how}: {self.rule} for l={prompt_tokens} under b={self.budget:g}"
        return DispatchPlan(launches, self.name, reason)
