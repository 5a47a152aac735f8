"""Where a registered device may make the router connect."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from typing import Any

import pytest

from serve_app.core.errors import InvalidRequest
from serve_app.device_address import Network, objection, resolve
from serve_app.server_url import ServerUrl

EVERYTHING = tuple(map(ipaddress.ip_network, ("0.0.0.0/0", "::/0")))
HOME = tuple(map(ipaddress.ip_network, ("192.168.1.0/24", "fd12:3456::/32")))
LOOPBACK = tuple(map(ipaddress.ip_network, ("127.0.0.1/32", "::1/128")))

NEVER = [
    "169.254.169.254",
    "169.254.0.7",
    "fe80::1",
    "fe80::1%eth0",
    "fd00:ec2::254",
    "100.100.100.200",
    "168.63.129.16",
    "224.0.0.1",
    "ff02::1",
    "0.0.0.0",
    "::",
    "255.255.255.255",
    "240.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:127.0.0.1",
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "::127.0.0.1",
    "127.0.0.1",
    "127.8.8.8",
    "::1",
]


@pytest.mark.parametrize("address", NEVER)
def test_what_no_network_in_general_opens(address: str) -> None:
    assert objection(ipaddress.ip_address(address), EVERYTHING) is not None


@pytest.mark.parametrize(
    ("address", "allowed", "may"),
    [
        ("192.168.1.20", HOME, True),
        ("192.168.2.20", HOME, False),
        ("::ffff:192.168.1.20", HOME, True),
        ("::ffff:192.168.2.20", HOME, False),
        ("fd12:3456::9", HOME, True),
        ("fd99::9", HOME, False),
        ("8.8.8.8", EVERYTHING, True),
        ("8.8.8.8", (), False),
        ("127.0.0.1", LOOPBACK, True),
        ("::1", LOOPBACK, True),
        ("127.0.0.2", LOOPBACK, False),
        ("::ffff:127.0.0.1", LOOPBACK, True),
    ],
)
def test_only_allowed_networks_and_loopback_only_by_name(address: str, allowed: tuple[Network, ...], may: bool) -> None:
    assert (objection(ipaddress.ip_address(address), allowed) is None) is may


def resolved(
    url: str, monkeypatch: pytest.MonkeyPatch, addresses: Sequence[str] = (), allowed: Sequence[Network] = HOME
) -> str:
    """``addresses``: what the host's name has; empty: the system is asked."""

    async def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    async def main() -> str:
        if addresses:
            monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
        return await resolve(ServerUrl.parse(url), allowed)

    return asyncio.run(main())


def test_a_name_becomes_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolved("http://phone.lan:8080/v1", monkeypatch, ["192.168.1.20", "192.168.1.21"]) == "192.168.1.20"
    assert resolved("http://phone.lan:8080/v1", monkeypatch, ["::ffff:192.168.1.20"]) == "192.168.1.20"
    assert resolved("http://[fd12:3456::9]:8080/v1", monkeypatch) == "fd12:3456::9"


@pytest.mark.parametrize(
    ("url", "addresses", "problem"),
    [
        # One bad address among good ones is how a name is rebound.
        ("http://phone.lan:8080/v1", ["192.168.1.20", "10.0.0.1"], "in none of devices.allow"),
        ("http://phone.lan:8080/v1", ["169.254.169.254"], "link-local"),
        ("http://192.168.1.20:22/v1", [], "port"),
        ("http://192.168.1.20:6/v1", [], "port"),
        ("http://3232235796:8080/v1", [], "four decimal parts"),
        ("http://0xc0a80114:8080/v1", [], "four decimal parts"),
        ("http://192.168.276:8080/v1", [], "four decimal parts"),
        ("http://0300.0250.01.024:8080/v1", [], "four decimal parts"),
        ("http://nothing.invalid:8080/v1", [], "no address"),
        ("http://" + "a" * 70 + ".lan:8080/v1", [], "no address"),
    ],
)
def test_what_cannot_be_a_device_is_refused_without_repeating_it(
    url: str, addresses: list[str], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidRequest, match=problem) as refused:
        resolved(url, monkeypatch, addresses)
    assert refused.value.param == "base_url"
    assert not any(address in refused.value.message for address in addresses)


@pytest.mark.parametrize(("url", "port"), [("http://a/v1", 80), ("https://a/v1", 443), ("https://a:1024/v1", 1024)])
def test_ports_of_web_servers_and_free_ones(url: str, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ServerUrl.parse(url).port == port
    assert resolved(url, monkeypatch, ["192.168.1.20"]) == "192.168.1.20"
