"""When each side of a request starts, for one request or for a million at once; free of endpoint names."""

from __future__ import annotations

import math
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

#: The delay of a side that is not started at all.
NEVER: Final = math.inf


class Delays(NamedTuple):
    """Seconds after the request's arrival at which each side starts, one entry per request; ``NEVER``: it does not.

    A side with a positive delay starts only if no token has come by then (strictly: iff the other's TTFT exceeds it).
    """

    server: NDArray[np.float64]
    device: NDArray[np.float64]


class Start(NamedTuple):
    """The delays of one request."""

    server: float
    device: float


class Schedule(Protocol):
    """What a policy decided for every prompt length."""

    def delays(self, prompt_tokens: NDArray[np.int64], u: NDArray[np.float64]) -> Delays:
        """``u``: uniform in [0, 1), one per request, and the only randomness a policy may use."""
        ...
