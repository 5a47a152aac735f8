"""How busy each endpoint is: the legs that run on it, against the slots they share."""

from __future__ import annotations

from collections.abc import Mapping

from serve_app.core.model import EndpointId

#: Seconds that a leg is taken to hold its slot before any was seen to end.
PRIOR_HOLD = 10.0
_SMOOTHING = 0.1


class EndpointLoad:
    """Counts what this router started; ``slots``: concurrent streams over all replicas of each endpoint.

    ``elsewhere``: legs that other routers run there, as they last said. ``foreign``: answers that an endpoint's server
    has under way for others than this service, as it last said itself.
    """

    def __init__(self, slots: Mapping[EndpointId, int]) -> None:
        self._slots = dict(slots)
        self._running = dict.fromkeys(slots, 0)
        self.elsewhere: Mapping[EndpointId, int] = {}
        self.foreign: dict[EndpointId, int] = {}
        self._hold = dict.fromkeys(slots, PRIOR_HOLD)

    def add(self, endpoint: EndpointId, slots: int) -> None:
        """A further endpoint, or one that is back with so many slots."""
        self._slots[endpoint] = slots
        self._running.setdefault(endpoint, 0)
        self._hold.setdefault(endpoint, PRIOR_HOLD)

    def forget(self, endpoint: EndpointId) -> None:
        """One that nothing runs on any more, nor will."""
        for known in (self._slots, self._running, self._hold, self.foreign):
            known.pop(endpoint, None)

    def report(self, endpoint: EndpointId, answers: int) -> None:
        """Its server has so many answers under way, this service's among them."""
        ours = self._running[endpoint] + self.elsewhere.get(endpoint, 0)
        self.foreign[endpoint] = max(0, answers - ours)

    def started(self, endpoint: EndpointId) -> None:
        self._running[endpoint] += 1

    def ended(self, endpoint: EndpointId, held: float) -> None:
        """A leg is over, ``held`` seconds after its start."""
        self._running[endpoint] -= 1
        self._hold[endpoint] += _SMOOTHING * (held - self._hold[endpoint])

    @property
    def own(self) -> Mapping[EndpointId, int]:
        """Legs that this router runs."""
        return self._running

    def running(self, endpoint: EndpointId) -> int:
        return self._running[endpoint] + self.elsewhere.get(endpoint, 0) + self.foreign.get(endpoint, 0)

    def slots(self, endpoint: EndpointId) -> int:
        return self._slots[endpoint]

    def is_full(self, endpoint: EndpointId) -> bool:
        """A newcomer would have to queue."""
        return self.running(endpoint) >= self._slots[endpoint]

    def queue_seconds(self, endpoint: EndpointId) -> float:
        """Seconds that a newcomer can expect to queue: slots fall free one by one, each held as long as lately."""
        ahead = self.running(endpoint) - self._slots[endpoint] + 1
        return max(0, ahead) * self._hold[endpoint] / self._slots[endpoint]
