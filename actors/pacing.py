"""How far a leg may run ahead of its reader, and when each of its tokens must leave: arithmetic only.

The reader's clock (paper section 8) counts ``1 + floor((t - origin) rate)`` tokens of a first leg, whose origin is its
own first token, and ``floor((t - origin) rate)`` where ``lead`` unread tokens were handed over and the origin is the
leg's start.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from serve_app.core.model import Pace

# In tokens: rounding, or a timer that fires a nanosecond early, must not cost a token at the instant it becomes due.
_EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class ReaderClock:
    """``origin`` is in the local clock's seconds. Tokens of the leg are numbered from 0."""

    pace: Pace
    origin: float

    @property
    def _at_origin(self) -> int:
        """Tokens of this leg that the reader's clock counts at the origin; negative while an older lead is unread."""
        return -math.ceil(self.pace.lead) if self.pace.lead > 0 else 1

    def allowance(self, produced: int, now: float) -> int:
        """Tokens that may be produced now, beyond the ``produced`` ones."""
        if self.pace.rate is None:
            return max(0, self.pace.ahead_limit - produced)
        read = self._at_origin + math.floor((now - self.origin) * self.pace.rate + _EPSILON)
        return max(0, self.pace.ahead_limit + read - produced)

    def opens_at(self, produced: int, wanted: int = 1) -> float | None:
        """When the allowance reaches ``wanted``; None: never, the reader's rate is unknown."""
        if self.pace.rate is None:
            return None
        steps = max(0, produced + wanted - self.pace.ahead_limit - self._at_origin)
        return self.origin + steps / self.pace.rate

    def leave_by(self, token: int) -> float | None:
        """The latest time at which this token may leave: one slack before it is read. None: leave at once."""
        if self.pace.rate is None or not self.pace.hold:
            return None
        return self.origin + (token + max(0.0, self.pace.lead)) / self.pace.rate - self.pace.slack


def clock_for(pace: Pace, started: float, first_token: float | None) -> ReaderClock | None:
    """The clock of a leg that started at ``started``; None before the first token of a leg without a lead."""
    if pace.lead > 0:
        return ReaderClock(pace, started)
    return None if first_token is None else ReaderClock(pace, first_token)
