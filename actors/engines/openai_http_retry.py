"""Whether and when a failed call is made again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

from actors.engines.openai_http_errors import Failed

_FIRST_PAUSE: Final = 0.25


def pauses(first: float, longest: float) -> Iterator[float]:
    """Seconds: ``first``, then twice as long each time, up to ``longest``."""
    pause = first
    while True:
        yield min(pause, longest)
        pause = min(2 * pause, longest)


class Retries:
    """At most ``most``. ``longest``: seconds that a server's Retry-After may ask for.

    The pauses of many replicas that failed together spread by what ``seed`` draws.
    """

    def __init__(self, most: int, longest: float, seed: str) -> None:
        self._left = most
        self._longest = longest
        self._random = random.Random(seed)
        self._pauses = pauses(_FIRST_PAUSE, max(longest, _FIRST_PAUSE))

    def after(self, failed: Failed, seconds_left: float) -> float | None:
        """Seconds to wait before the next try; None: give up. ``seconds_left`` before a first token is due."""
        if failed.retry_after is None or failed.retry_after > self._longest or not self._left:
            return None
        self._left -= 1
        pause = max(failed.retry_after, next(self._pauses) * (0.5 + self._random.random() / 2))
        return pause if pause < seconds_left else None
