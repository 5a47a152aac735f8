"""Policies that look at no estimate: one side alone, and the paper's random assignment (section 9)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from serve_app.core.model import EndpointKind
from serve_app.core.schedule import NEVER, Delays, Start


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same delays, in seconds, for every request."""

    server: float
    device: float

    def delays(self, prompt_tokens: NDArray[np.int64], u: NDArray[np.float64]) -> Delays:  # noqa: ARG002 - a Schedule
        size = prompt_tokens.size
        return Delays(np.full(size, self.server), np.full(size, self.device))

    def start(self, prompt_tokens: int, u: float) -> Start:  # noqa: ARG002 - a Schedule
        return Start(self.server, self.device)


SERVER_ONLY: Final = Fixed(0.0, NEVER)
DEVICE_ONLY: Final = Fixed(NEVER, 0.0)
RACE: Final = Fixed(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Stochastic:
    """Requests with u < ``share`` are treated as ``chosen``, the others as ``usual``, whatever their length."""

    share: float
    chosen: Fixed
    usual: Fixed

    def delays(self, prompt_tokens: NDArray[np.int64], u: NDArray[np.float64]) -> Delays:  # noqa: ARG002 - a Schedule
        picked = u < self.share
        return Delays(
            np.where(picked, self.chosen.server, self.usual.server),
            np.where(picked, self.chosen.device, self.usual.device),
        )

    def start(self, prompt_tokens: int, u: float) -> Start:
        return (self.chosen if u < self.share else self.usual).start(prompt_tokens, u)


def stochastic(constrained: EndpointKind, budget: float, *, concurrent: bool) -> Stochastic:
    """Stoch-D or Stoch-S: the constrained side takes part with probability b, so that E[I(l) l] = b E[l].

    ``concurrent``: it joins the other side. False: it replaces it. The paper leaves open which of the two it means.
    """
    alone, other = (DEVICE_ONLY, SERVER_ONLY) if constrained is EndpointKind.DEVICE else (SERVER_ONLY, DEVICE_ONLY)
    return Stochastic(budget, RACE if concurrent else alone, other)
