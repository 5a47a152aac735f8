"""From a schedule to endpoints: who starts for one request, and whether the other side joins."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from serve_app.core.latency import LinearTtft
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
class Backed:
    """One endpoint serves, and another of its kind starts as well if there is no token after ``late``, seconds by l."""

    first: EndpointId
    second: EndpointId
    late: LinearTtft

    def decide(self, prompt_tokens: int, u: float) -> DispatchPlan:  # noqa: ARG002 - the protocol's signature
        delay = self.late.predict(prompt_tokens)
        reason = f"hedge after {delay:.2f} s: {self.first} is seldom later"
        return DispatchPlan((Launch(self.first), Launch(self.second, delay)), "backup", reason)


@dataclass(frozen=True, slots=True)
class Scheduled:
    """One cloud endpoint and one device start when the schedule says so. ``rule``: what it goes by, for reports."""

    cloud: EndpointId
    device: EndpointId
    schedule: Starter
    name: str
    rule: str
    budget: float
    _cloud: Launch = field(init=False, repr=False, compare=False)
    _device: Launch = field(init=False, repr=False, compare=False)
    _under: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # A decision is on the path of every request; what all have in common is made once.
        object.__setattr__(self, "_cloud", Launch(self.cloud))
        object.__setattr__(self, "_device", Launch(self.device))
        object.__setattr__(self, "_under", f"under b={self.budget:g}")

    def decide(self, prompt_tokens: int, u: float) -> DispatchPlan:
        server, device = self.schedule.start(prompt_tokens, u)
        launches: tuple[Launch, ...]
        if server == device:
            launches, how = (self._cloud, self._device), "race"
        elif server == 0 and device == NEVER:
            launches, how = (self._cloud,), "cloud alone"
        elif server == 0:
            launches, how = (self._cloud, Launch(self.device, device)), f"hedge after {device:.2f} s"
        elif server == NEVER:
            launches, how = (self._device,), "device alone"
        else:
            launches, how = (self._device, Launch(self.cloud, server)), f"hedge after {server:.2f} s"
        return DispatchPlan(launches, self.name, f"{how}: {self.rule} for l={prompt_tokens} {self._under}")
