"""Who sends a request, by its API key, and what that key allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from serve_app.access_settings import KeySettings
from serve_app.core.errors import AccessDenied, InvalidKey
from serve_app.keys import Keyring
from serve_app.streams import Grant


class Caller:
    """Whoever has one key, or, where there are no keys, everybody."""

    def __init__(self, name: str | None = None, settings: KeySettings | None = None) -> None:
        self.scope = settings.scope if settings else None
        self.grant = Grant(name, settings.pin, settings.endpoints) if settings else Grant()


EVERYBODY = Caller()


class Callers:
    """All who have a key."""

    def __init__(self, keys: Mapping[str, KeySettings]) -> None:
        self._keyring = Keyring(keys)
        self._callers = {name: Caller(name, settings) for name, settings in keys.items()}

    def knows(self, authorization: Sequence[str]) -> bool:
        try:
            self._keyring.recognise(authorization)
        except InvalidKey:
            return False
        return True

    def identify(self, authorization: Sequence[str], scope: Literal["api", "metrics"] = "api") -> Caller:
        """``authorization``: the header's values. Raises InvalidKey, and AccessDenied where the key's scope differs."""
        caller = self._callers[self._keyring.recognise(authorization)]
        if caller.scope != scope:
            doors = {"api": "/v1", "metrics": "/metrics"}
            raise AccessDenied(f"this key opens {doors[caller.scope or 'api']}, and nothing else")
        return caller
