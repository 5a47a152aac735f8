"""How busy each endpoint is: the legs that run on it, against the slots they share."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from serve_app.core.model import EndpointId

#: Seconds that a leg is taken to hold its slot before any was seen to end.
PRIOR_HOLD = 10.0
_SMOOTHING = 0.1

#: Answers that are remembered for every replica that there may be: enough to have met each one that serves.
MEMORY: Final = 8


@dataclass(frozen=True, slots=True)
class Capacity:
    """slots: concurrent streams of one replica. replicas: how many are believed in at first, and how many may be."""

    slots: int
    replicas: int = 1
    most_replicas: int = 1


class _Replicas:
    """How many replicas an endpoint has: as many as answered lately, for some may have no node, or be lost with one."""

    def __init__(self, capacity: Capacity) -> None:
        self._expected = capacity.replicas
        self._answers: deque[str] = deque(maxlen=MEMORY * capacity.most_replicas)
        self._acquainted = False

    @property
    def count(self) -> int:
        met = len(set(self._answers))
        return max(1, met) if self._acquainted else max(self._expected, met)

    def answered(self, replica: str) -> None:
        self._answers.append(replica)
        self._acquainted |= len(self._answers) == self._answers.maxlen

    def failed(self, replica: str) -> None:
        """Whether it will ever answer again, its next answer tells."""
        kept = [name for name in self._answers if name != replica]
        self._answers.clear()
        self._answers.extend(kept)


class EndpointLoad:
    """Counts what this router started.

    ``elsewhere``: legs that other routers run there, as they last said. ``foreign``: answers that an endpoint's server
    has under way for others than this service, as it last said itself.
    """

    def __init__(self, capacities: Mapping[EndpointId, Capacity]) -> None:
        self._slots = {endpoint: capacity.slots for endpoint, capacity in capacities.items()}
        self._replicas = {endpoint: _Replicas(capacity) for endpoint, capacity in capacities.items()}
        self._running = dict.fromkeys(capacities, 0)
        self.elsewhere: Mapping[EndpointId, int] = {}
        self.foreign: dict[EndpointId, int] = {}
        self._hold = dict.fromkeys(capacities, PRIOR_HOLD)

    def add(self, endpoint: EndpointId, capacity: Capacity) -> None:
        """A further endpoint, or one that is back."""
        self._slots[endpoint] = capacity.slots
        self._replicas[endpoint] = _Replicas(capacity)
        self._running.setdefault(endpoint, 0)
        self._hold.setdefault(endpoint, PRIOR_HOLD)

    def forget(self, endpoint: EndpointId) -> None:
        """One that nothing runs on any more, nor will."""
        for known in (self._slots, self._replicas, self._running, self._hold, self.foreign):
            known.pop(endpoint, None)

    def report(self, endpoint: EndpointId, answers: int) -> None:
        """Its server has so many answers under way, this service's among them."""
        ours = self._running[endpoint] + self.elsewhere.get(endpoint, 0)
        self.foreign[endpoint] = max(0, answers - ours)

    def started(self, endpoint: EndpointId) -> None:
        self._running[endpoint] += 1

    def ended(self, endpoint: EndpointId, held: float, replica: str = "", *, failed: bool = False) -> None:
        """A leg is over, ``held`` seconds after its start; ``replica``: who gave it a slot, empty where nobody did."""
        self._running[endpoint] -= 1
        self._hold[endpoint] += _SMOOTHING * (held - self._hold[endpoint])
        if replica and failed:
            self._replicas[endpoint].failed(replica)
        elif replica:
            self._replicas[endpoint].answered(replica)

    @property
    def own(self) -> Mapping[EndpointId, int]:
        """Legs that this router runs."""
        return self._running

    def slots(self, endpoint: EndpointId) -> int:
        """Concurrent streams over all the replicas that it seems to have."""
        return self._slots[endpoint] * self._replicas[endpoint].count

    def running(self, endpoint: EndpointId) -> int:
        return self._running[endpoint] + self.elsewhere.get(endpoint, 0) + self.foreign.get(endpoint, 0)

    def is_full(self, endpoint: EndpointId) -> bool:
        """A newcomer would have to queue."""
        return self.running(endpoint) >= self.slots(endpoint)

    def queue_seconds(self, endpoint: EndpointId) -> float:
        """Seconds that a newcomer can expect to queue: slots fall free one by one, each held as long as lately."""
        slots = self.slots(endpoint)
        ahead = self.running(endpoint) - slots + 1
        return max(0, ahead) * self._hold[endpoint] / slots
