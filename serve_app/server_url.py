"""The address of somebody else's server, as an operator writes it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class ServerUrl:
    """``base`` has no slash at its end; ``root``, where servers keep routes of their own, has no /v1 either."""

    base: str
    host: str
    port: int
    encrypted: bool

    @classmethod
    def parse(cls, url: str) -> ServerUrl:
        """Raises ValueError, which repeats nothing of it, for anything but http(s)://host[:port][/path]."""
        try:
            parts = urlsplit(url)
            sound = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        except ValueError:
            sound = False
        if not sound or not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
            raise ValueError("base_url: must be http(s)://host[:port]/path, such as http://127.0.0.1:8080/v1")
        if "@" in parts.netloc:
            raise ValueError("base_url: must hold no user name or key; a key has a setting of its own")
        if "?" in url or "#" in url:
            raise ValueError("base_url: must end with the path; remove the query or fragment")
        encrypted = parts.scheme == "https"
        return cls(url.rstrip("/"), parts.hostname or "", parts.port or (443 if encrypted else 80), encrypted)

    @property
    def root(self) -> str:
        return self.base.removesuffix("/v1")

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
