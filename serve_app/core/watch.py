"""When an endpoint's silence becomes suspicious, and which endpoints nobody should start now."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from serve_app.core.model import EndpointId

#: Seconds of silence that are never suspicious, whatever an endpoint's habits: machines have hiccups.
FLOOR: Final = 2.0


class Patience(NamedTuple):
    """Seconds from a leg's start to its first token, and from one item to the next, slack not counted, after which the
    leg is suspected: somebody else gets a chance beside it. It has failed only at the limits that are configured."""

    first_token: float = math.inf
    further: float = math.inf


ENDLESS: Final = Patience()


def patience_of(usual: Patience, factor: float | None, queue: float, limits: Patience) -> Patience:
    """``usual``: what an endpoint takes in 99 of 100 cases, infinite where that is not known yet.

    factor: multiple of it from which on it is suspicious; None: nothing ever is. queue: expected seconds in its queue.
    limits: beyond which the leg has failed anyway.
    """
    if factor is None:
        return ENDLESS
    first = max(FLOOR, factor * usual.first_token) + queue
    further = max(FLOOR, factor * usual.further)
    return Patience(
        first if first < limits.first_token else math.inf, further if further < limits.further else math.inf
    )


def _endless(_: EndpointId, __: int) -> Patience:
    return ENDLESS


def _nobody(_: EndpointId) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Watch:
    """What a session may ask about endpoints while it runs.

    patience: for a leg that has so many tokens to prefill. is_sick: it fails too often to be given more to do.
    """

    patience: Callable[[EndpointId, int], Patience] = _endless
    is_sick: Callable[[EndpointId], bool] = _nobody


#: Nothing is known, so nobody is suspected.
UNWATCHED: Final = Watch()
