"""Who may talk to the router. Without API keys, only this machine."""

from __future__ import annotations

import ipaddress

from serve_app.access_settings import AccessSettings
from serve_app.core.errors import AccessDenied


def is_loopback(host: str | None) -> bool:
    """Whether a listening address is reachable from this machine alone; None, an unknown address, is not."""
    if host is None:
        return False
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def host_name(header: str) -> str:
    """The Host header without its port."""
    header = header.lower()
    if header.startswith("["):
        return header[: header.find("]") + 1]
    return header.partition(":")[0]


def check_access(access: AccessSettings, http_host: str | None, host: str | None, origin: str | None = None) -> None:
    """Raise AccessDenied unless the request may be served.

    ``http_host`` is the address Serve listens on. The headers are checked because a page in a browser on this machine
    can send requests to 127.0.0.1, or make its own name resolve to it, but cannot forge Host and Origin.
    """
    if access.open:
        return
    if not is_loopback(http_host):
        raise AccessDenied(
            "this router has no API keys and listens beyond loopback, so it serves nobody; set http_options.host to "
            "127.0.0.1, or access.open to true if everyone who can reach it may use it"
        )
    allowed = {name.lower() for name in access.allowed_hosts}
    if host is None or host_name(host) not in allowed:
        raise AccessDenied("the Host header names no host in access.allowed_hosts")
    if origin is None or origin in access.allowed_origins:
        return
    if host_name(origin.partition("://")[2]) not in allowed:
        raise AccessDenied("the page that sent this request is in neither access.allowed_hosts nor allowed_origins")
