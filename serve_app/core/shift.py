"""Whether a service has become another one: its newest answers beside those before them."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final

#: Newest answers that are looked at together, and those before them that it takes to tell.
NEWEST: Final = 10
ENOUGH_BEFORE: Final = 40
#: Answers that are looked at, at most: every one that comes is compared with them.
MOST: Final = 400
#: Standard deviations of the rank sum (Mann-Whitney): by chance alone it is that far off once in half a million times.
#: Ten answers reach it only if nearly all of them are faster, or slower, than nearly all before.
CERTAIN: Final = 4.8


def has_shifted(ttfts: Sequence[float]) -> bool:
    """``ttfts``: seconds, oldest first, the last ``MOST`` of them or fewer."""
    before, newest = sorted(ttfts[:-NEWEST]), ttfts[-NEWEST:]
    if len(before) < ENOUGH_BEFORE:
        return False
    # Ties count half.
    faster = sum(bisect_left(before, ttft) + bisect_right(before, ttft) for ttft in newest) / 2
    pairs = len(before) * NEWEST
    deviation = math.sqrt(pairs * (len(before) + NEWEST + 1) / 12)
    return abs(faster - pairs / 2) > CERTAIN * deviation
