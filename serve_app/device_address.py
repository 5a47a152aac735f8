"""To which addresses a registered device may make the router connect (against server-side request forgery)."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Sequence
from typing import Final, TypeAlias

from serve_app.core.errors import InvalidRequest
from serve_app.server_url import ServerUrl

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

#: Where clouds tell a machine its secrets, as far as these are not link-local: AWS, Alibaba, Azure, Oracle.
_METADATA: Final = frozenset(
    map(ipaddress.ip_address, ("fd00:ec2::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"))
)
#: Networks whose addresses stand for IPv4 ones, which a translator would reach.
_TRANSLATED: Final = tuple(
    map(ipaddress.ip_network, ("::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32"))
)
#: Below these only web servers listen that mean to be reached.
_FIRST_FREE_PORT: Final = 1024
_WEB_PORTS: Final = frozenset({80, 443})

#: Which some libraries take for an address and others for a name.
_NUMERIC: Final = re.compile(r"(0x[0-9a-f]*|[0-9]+)(\.(0x[0-9a-f]*|[0-9]+))*\.?", re.IGNORECASE)

#: Seconds for a name to be resolved.
_RESOLUTION: Final = 5.0


def objection(address: Address, allowed: Sequence[Network]) -> str | None:
    """Why the router does not connect to it; None: it may. What is refused whatever is allowed comes first."""
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
        return "has a zone"
    address = _plain(address)
    if address in _METADATA or address.is_link_local:
        return "is link-local or where a cloud keeps a machine's secrets"
    if any(address.version == network.version and address in network for network in _TRANSLATED):
        return "stands for another address"
    if address.is_multicast or address.is_unspecified or (address.is_reserved and not address.is_loopback):
        return "is no single machine's"
    within = [network for network in allowed if address.version == network.version and address in network]
    if address.is_loopback:
        # A network that happens to contain it, such as 0.0.0.0/0, was not meant to open this machine.
        within = [network for network in within if network.is_loopback]
    return None if within else "is in none of devices.allow"


async def resolve(url: ServerUrl, allowed: Sequence[Network]) -> str:
    """The address to connect to from now on, whatever becomes of the name.

    Raises InvalidRequest where a single one of the name's addresses is none that the router may connect to. The message
    repeats no address: they are the resolver's, and may tell of an inner network.
    """
    if _NUMERIC.fullmatch(url.host) and not _is_address(url.host):
        raise _refused("an address is written in four decimal parts, or as IPv6")
    port = url.port
    if port < _FIRST_FREE_PORT and port not in _WEB_PORTS:
        raise _refused(f"a device's port is 80, 443 or from {_FIRST_FREE_PORT} on")
    try:
        async with asyncio.timeout(_RESOLUTION):
            found = await asyncio.get_running_loop().getaddrinfo(url.host, port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError, UnicodeError):
        raise _refused("the host has no address") from None
    addresses = [ipaddress.ip_address(sockaddr[0]) for *_, sockaddr in found]
    for address in addresses:
        if problem := objection(address, allowed):
            raise _refused(f"an address of the host {problem}")
    return str(_plain(addresses[0]))


def _plain(address: Address) -> Address:
    """An IPv4 address in IPv6's clothes as what it is."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _refused(problem: str) -> InvalidRequest:
    return InvalidRequest(f"base_url: {problem}", "base_url")
