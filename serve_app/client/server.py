"""A server with OpenAI's HTTP API, this service or any other: where it is, and with which key."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

import aiohttp

from serve_app.auth import is_loopback

#: Seconds. How long an answer may take is the caller's to say, so nothing but the connection is limited here.
_CONNECT = 10.0


@dataclass(frozen=True, slots=True)
class Server:
    """``api``: what paths such as ``/chat/completions`` are added to. ``root``: where this service has ``/ready``."""

    root: str
    api: str
    key: str | None = field(default=None, repr=False)

    @property
    def host(self) -> str:
        return urlsplit(self.api).hostname or ""

    @property
    def exposes_key(self) -> bool:
        """The key would travel over a network in clear."""
        return self.key is not None and not self.api.startswith("https:") and not is_loopback(self.host)

    def with_key(self, key: str | None) -> Server:
        """Raises ValueError, which does not repeat it, for what no HTTP header may carry."""
        if key is not None and (not key.isascii() or not key.isprintable() or " " in key):
            raise ValueError("no API key has such characters")
        return replace(self, key=key)


def server_at(url: str) -> Server:
    """A URL without a path gets OpenAI's /v1; one with a path is taken as OpenAI's clients take it.

    Raises ValueError.
    """
    try:
        parts = urlsplit(url)
        sound = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound or parts.username is not None or parts.query or parts.fragment:
        raise ValueError("must be like http://127.0.0.1:8000")
    path = parts.path.rstrip("/") or "/v1"
    origin = f"{parts.scheme}://{parts.netloc}"
    return Server(origin + path.removesuffix("/v1"), origin + path)


def key_in(variable: str, environment: Mapping[str, str] = os.environ) -> str:
    """The key that the environment variable holds. Raises ValueError where it is not set."""
    key = environment.get(variable, "").strip()
    if not key:
        raise ValueError(f"the environment variable {variable} is not set; export the key there")
    return key


def open_session(server: Server, connections: int = 100) -> aiohttp.ClientSession:
    """``connections``: at once, 0 for any number. Close it after use."""
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT),
        # The user's proxy settings are for the Internet, not for a server on this machine.
        trust_env=not is_loopback(server.host),
        headers={} if server.key is None else {"Authorization": f"Bearer {server.key}"},
        connector=aiohttp.TCPConnector(limit=connections),
    )
