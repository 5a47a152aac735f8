"""What a running service says about itself over HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from ipaddress import ip_address


@dataclass(frozen=True, slots=True)
class Readiness:
    """``waiting``: endpoints that are not ready, each with the reason."""

    ready: bool
    waiting: Mapping[str, str]
    warm: tuple[str, ...]


def base_url(host: str, port: int) -> str:
    """Where a client on this machine reaches a server that listens on ``host``."""
    try:
        address = ip_address(host)
    except ValueError:
        return f"http://{host}:{port}"
    if address.is_unspecified:
        return f"http://{'[::1]' if address.version == 6 else '127.0.0.1'}:{port}"
    return f"http://[{host}]:{port}" if address.version == 6 else f"http://{host}:{port}"


def ask(url: str, timeout: float = 2.0) -> Readiness | None:
    """GET /ready; None while nothing there speaks for the application."""
    # The user's proxy settings are for the Internet, not for a server on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        try:
            with opener.open(f"{url}/ready", timeout=timeout) as response:
                return parse(response.read())
        except urllib.error.HTTPError as error:
            with error:
                return parse(error.read())
    except (OSError, HTTPException):
        return None


def parse(body: bytes) -> Readiness | None:
    try:
        document = json.loads(body)
    except ValueError:
        return None
    if not isinstance(document, dict) or not isinstance(document.get("endpoints"), dict):
        return None
    endpoints = {name: state for name, state in document["endpoints"].items() if isinstance(state, dict)}
    waiting = {name: str(state.get("reason", "")) for name, state in endpoints.items() if not state.get("ready")}
    return Readiness(bool(document.get("ready")), waiting, tuple(name for name in endpoints if name not in waiting))
