"""When a place falls free again: what those who are turned away are told."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

#: Ends that are remembered: enough for a median, few enough to forget one long stream soon.
REMEMBERED: Final = 20

#: Seconds that a newcomer is told to wait, at least and at most.
SHORTEST: Final = 1.0
LONGEST: Final = 60.0


def seconds_until_free(ages: Sequence[float], held: Sequence[float], turn: int = 1) -> float:
    """Seconds until the ``turn``-th of the places falls free, from ``SHORTEST`` to ``LONGEST``.

    ages: seconds for which each place has been taken. held: seconds for which places were held lately. What runs is
    expected to last as long as the median of those that lasted longer; what has outlived all of them, as long again.
    """
    if not ages:
        return SHORTEST
    known = sorted(held)
    remaining = sorted(_remaining(age, known) for age in ages)
    rounds, rank = divmod(turn - 1, len(remaining))
    typical = known[len(known) // 2] if known else SHORTEST
    # A place that falls free late gets its next stream late.
    spread = remaining[-1] - remaining[0]
    return min(LONGEST, max(SHORTEST, remaining[rank] + rounds * max(typical, spread)))


def _remaining(age: float, known: Sequence[float]) -> float:
    first = bisect_right(known, age)
    if first == len(known):
        return age
    return known[(first + len(known)) // 2] - age
