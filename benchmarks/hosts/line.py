"""What a host's line to all others does to packets: pure decisions, given the time and a source of randomness."""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Condition:
    """Of one line, the same in both directions.

    delay, jitter: seconds; a packet takes between delay - jitter and delay + jitter, evenly. loss: share of packets.
    cut: nothing passes, and what is under way is lost.
    """

    delay: float = 0.0
    jitter: float = 0.0
    loss: float = 0.0
    cut: bool = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.jitter <= self.delay:
            raise ValueError("jitter must lie between 0 and delay")
        if not 0.0 <= self.loss <= 1.0:
            raise ValueError("loss must lie between 0 and 1")


@dataclass(slots=True)
class Direction:
    """One direction of a line. No packet overtakes one before it, so jitter delays bursts, but reorders nothing."""

    _last: float = field(default=0.0, init=False)

    def arrival(self, sent: float, condition: Condition, dice: random.Random) -> float | None:
        """When a packet that is ``sent`` then comes out; None if it never does."""
        if condition.cut or (condition.loss and dice.random() < condition.loss):
            return None
        taken = condition.delay
        if condition.jitter:
            taken += dice.uniform(-condition.jitter, condition.jitter)
        self._last = max(self._last, sent + taken)
        return self._last
