"""When a leg's silence is suspicious, and when it is a failure. Instants of the session's clock, in seconds."""

from __future__ import annotations

import math

from serve_app.core.errors import EndpointTimeout
from serve_app.core.legs import Leg
from serve_app.core.protocol import SessionConfig


def failed_at(leg: Leg, config: SessionConfig) -> float:
    """The configured limit of its silence."""
    if leg.first_token is None:
        return leg.started + config.first_token_timeout
    return leg.last_item + config.slack + config.idle_timeout


def suspected_at(leg: Leg, config: SessionConfig) -> float:
    """When its silence outlasts its endpoint's habits; infinite where these are unknown, or it was suspected before."""
    if leg.suspected_at is not None:
        return math.inf
    if leg.first_token is None:
        return leg.started + leg.patience.first_token
    return leg.last_item + config.slack + leg.patience.further


def silence(leg: Leg) -> EndpointTimeout:
    what = "first token" if leg.first_token is None else "further token"
    return EndpointTimeout(f"{leg.info.id}: no {what} in time", leg.info.id)
