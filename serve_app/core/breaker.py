"""Circuit breakers: an endpoint with too many faults of its own gets no requests for a while, then one to try it with.

    CLOSED     it gets requests
    OPEN       it gets none until its pause is over; then the next leg that starts there is the probe
    HALF_OPEN  the probe runs, and nothing else starts there

What counts is how a leg ended: one that was cut after a hundred tokens failed. Each router keeps breakers of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from serve_app.core.errors import EndpointError
from serve_app.core.legs import Leg, LegOutcome
from serve_app.core.model import AttemptId, EndpointId

#: Verdicts that are remembered, as a multiple of the faults that open a breaker: half of them bad is too many.
MEMORY: Final = 2

_FINE: Final = frozenset(
    {LegOutcome.COMPLETED, LegOutcome.HANDED_OVER, LegOutcome.PAUSED, LegOutcome.EMPTY, LegOutcome.LOST}
)


class BreakerState(StrEnum):
    CLOSED = "closed"
    HALF_OPEN = "half_open"
    OPEN = "open"


class Health(StrEnum):
    """What a leg says about its endpoint. UNKNOWN: nothing, for instance because the request was at fault."""

    FINE = "fine"
    FAULT = "fault"
    UNKNOWN = "unknown"


def health_of(leg: Leg) -> Health:
    """Of a leg that ended. Bad requests and full queues are no fault of an endpoint; silence past all patience is."""
    if leg.overdue or isinstance(leg.error, EndpointError):
        return Health.FAULT
    if leg.outcome in _FINE and (leg.first_token is not None or leg.outcome is LegOutcome.EMPTY):
        return Health.FINE
    return Health.UNKNOWN


@dataclass(frozen=True, slots=True)
class BreakerConfig:
    """``faults`` of the last few verdicts, none older than ``memory`` seconds, open a breaker.

    It stays open for ``shortest`` seconds, after each failed probe twice as long, up to ``longest``. A probe that has
    said nothing after ``lease`` seconds makes room for another.
    """

    faults: int = 5
    memory: float = 60.0
    shortest: float = 1.0
    longest: float = 30.0
    lease: float = 10.0


class Breaker:
    """One endpoint's. Times are seconds of one monotonic clock."""

    def __init__(self, config: BreakerConfig) -> None:
        self.config = config
        self._verdicts: deque[tuple[float, Health]] = deque()
        self._opened_at: float | None = None
        self._retry_at = 0.0
        self._pause = config.shortest
        self._probe: AttemptId | None = None
        self._probing_since = 0.0

    @property
    def state(self) -> BreakerState:
        if self._opened_at is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if self._probe is None else BreakerState.HALF_OPEN

    @property
    def retry_at(self) -> float:
        """From when on it may be tried again, if it is open."""
        if self._probe is None:
            return self._retry_at
        return max(self._retry_at, self._probing_since + self.config.lease)

    def takes(self, now: float) -> bool:
        """Whether a leg should start there."""
        return self._opened_at is None or now >= self.retry_at

    def started(self, attempt: AttemptId, now: float) -> None:
        """A leg started: the probe if one is due. Where nobody else can serve, one may start that is not."""
        if self._opened_at is not None and self.takes(now):
            self._probe, self._probing_since = attempt, now

    def ended(self, attempt: AttemptId, health: Health, started: float, now: float) -> None:
        """The leg that ``started`` then is over."""
        is_probe = attempt == self._probe
        if is_probe:
            self._probe = None
        if self._opened_at is None:
            self._judge(health, now)
        elif started < self._opened_at:
            # From before it opened: known already.
            return
        elif health is Health.FINE:
            self._close()
        elif health is Health.FAULT and is_probe:
            # Only a probe prolongs the pause: what else fails meanwhile must not keep it open for ever.
            self._pause = min(self.config.longest, 2 * self._pause)
            self._retry_at = now + self._pause

    def _judge(self, health: Health, now: float) -> None:
        if health is Health.UNKNOWN:
            return
        self._verdicts.append((now, health))
        while len(self._verdicts) > MEMORY * self.config.faults or self._verdicts[0][0] < now - self.config.memory:
            self._verdicts.popleft()
        if sum(verdict is Health.FAULT for _, verdict in self._verdicts) >= self.config.faults:
            self._opened_at, self._retry_at = now, now + self._pause

    def _close(self) -> None:
        self._verdicts.clear()
        self._opened_at, self._probe = None, None
        self._pause = self.config.shortest


class Breakers:
    """Those of all endpoints, made as they are asked for."""

    def __init__(self, config: BreakerConfig | None = None) -> None:
        self._config = config or BreakerConfig()
        self._of: dict[EndpointId, Breaker] = {}

    def __getitem__(self, endpoint: EndpointId) -> Breaker:
        if endpoint not in self._of:
            self._of[endpoint] = Breaker(self._config)
        return self._of[endpoint]

    def reconfigure(self, config: BreakerConfig) -> None:
        """States stay."""
        self._config = config
        for breaker in self._of.values():
            breaker.config = config

    def healthy(self, endpoints: Sequence[EndpointId], now: float) -> tuple[EndpointId, ...]:
        """Those that a request should start at; where there is none, the one that may be tried again first."""
        taking = tuple(endpoint for endpoint in endpoints if self[endpoint].takes(now))
        return taking or (min(endpoints, key=lambda endpoint: self[endpoint].retry_at),)

    def is_sick(self, endpoint: EndpointId, now: float) -> bool:
        return not self[endpoint].takes(now)
