"""Which devices may join at run time: the part of ``settings``' tree under ``devices``."""

from __future__ import annotations

import ipaddress
from typing import Annotated

from pydantic import AfterValidator, Field

from serve_app.fields import Seconds, Settings, Whole


def _network(text: str) -> str:
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError("each must be a network, such as 192.168.1.0/24, or an address") from None
    if network.is_link_local or network.is_multicast:
        raise ValueError("no device is reached at link-local or multicast addresses, whatever is allowed; remove it")
    if int(network.network_address) != int(ipaddress.ip_address(text.partition("/")[0])):
        raise ValueError(f"has bits beyond its prefix; write {network}")
    return text


class DevicesSettings(Settings):
    """Registration over HTTP is off unless ``allow`` names networks."""

    allow: tuple[Annotated[str, AfterValidator(_network)], ...] = Field(
        default=(),
        strict=False,
        description="Networks in CIDR notation, whose addresses a registered device's server may have.",
    )
    heartbeat_seconds: Seconds = Field(default=10.0, description="How often a device should be heard of.")
    missed: Whole = Field(default=3, ge=1, le=100, description="Heartbeats in a row without which a device is away.")
    most: Whole = Field(default=256, ge=1, le=10_000, description="Registered devices.")

    @property
    def networks(self) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
        return tuple(map(ipaddress.ip_network, self.allow))

    @property
    def away_after(self) -> float:
        """Seconds of silence."""
        return self.heartbeat_seconds * self.missed
