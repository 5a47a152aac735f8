"""Who sends a request, by its API key, and how much of what the key allows is left."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from serve_app.access_settings import KeyLimits, KeySettings, Scope
from serve_app.core.errors import AccessDenied, InvalidKey, QuotaExceeded, RateLimited
from serve_app.keys import BadKeys, Keyring, configured_keys
from serve_app.private_files import NotPrivate
from serve_app.settings import AppSettings
from serve_app.spending import SpendingFile
from serve_app.streams import Grant

_MINUTE = 60.0
_DOORS: Final[Mapping[Scope, str]] = {
    "api": "/v1",
    "metrics": "/metrics",
    "operator": "/disco, but for what devices report",
    "device": "what its devices report",
}


class RateWindow:
    """At most ``limit`` requests in any 60 seconds."""

    def __init__(self, limit: int) -> None:
        self._taken: deque[float] = deque(maxlen=limit)

    def take(self, now: float) -> float:
        """0, and the request counts; or the seconds until one may be sent. ``now``: seconds of a monotonic clock."""
        full = len(self._taken) == self._taken.maxlen
        if full and (wait := self._taken[0] + _MINUTE - now) > 0:
            return wait
        self._taken.append(now)
        return 0.0


class Caller:
    """Whoever has one key; without a name, everybody where there are no keys. Requests it had refused do not count.

    ``routers``: replicas of the router, each of which grants its share.
    """

    def __init__(
        self,
        name: str | None,
        limits: KeyLimits,
        spending: SpendingFile | None = None,
        now: Callable[[], float] = time.monotonic,
        routers: int = 1,
    ) -> None:
        share = limits.shared_by(routers)
        self.grant = Grant(name, limits.pin, limits.endpoints)
        self._limits = limits
        self._most_running = share.streams
        self._spending = spending
        self._window = RateWindow(share.requests_per_minute) if share.requests_per_minute else None
        self._now = now
        self._running = 0

    def enter(self) -> None:
        """One more request. Raises QuotaExceeded or RateLimited; what it costs nobody knows before its end."""
        self._check_budget()
        if self._window is not None and (wait := self._window.take(self._now())) > 0:
            most = self._limits.requests_per_minute
            raise RateLimited(f"this key may send {most} requests per minute; wait before the next one", wait)

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Held as long as the answer is under way. Raises RateLimited."""
        if self._most_running is not None and self._running >= self._most_running:
            most = self._limits.streams
            raise RateLimited(f"this key may have {most} answers under way at once; wait for one to end")
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    def charge(self, usd: float) -> None:
        """What one request has cost, however it ended."""
        if self._spending is not None and self.grant.key is not None:
            self._spending.add(self.grant.key, usd)

    def _check_budget(self) -> None:
        limits = self._limits
        if self._spending is None or self.grant.key is None or not limits.budgeted:
            return
        spent = self._spending.spent(self.grant.key)
        if limits.usd is not None and spent.total >= limits.usd:
            raise QuotaExceeded(f"this key has spent its {limits.usd:g} USD; ask the operator for more")
        if limits.usd_per_day is not None and spent.today >= limits.usd_per_day:
            raise QuotaExceeded(
                f"this key has spent its {limits.usd_per_day:g} USD of today; the next day begins at midnight UTC",
                spent.until_tomorrow,
            )


EVERYBODY = Caller(None, KeyLimits())


class Callers:
    """All who have a key. ``routers``: replicas of the router, each of which grants its share of a key's limits."""

    def __init__(self, keys: Mapping[str, KeySettings], spending: SpendingFile | None = None, routers: int = 1) -> None:
        self._keyring = Keyring(keys)
        self._spending = spending
        self._scopes = {name: settings.scope for name, settings in keys.items()}
        self._callers = {name: Caller(name, settings, spending, routers=routers) for name, settings in keys.items()}

    def close(self) -> None:
        if self._spending is not None:
            self._spending.close()

    def knows(self, authorization: Sequence[str]) -> bool:
        try:
            self._keyring.recognise(authorization)
        except InvalidKey:
            return False
        return True

    def identify(self, authorization: Sequence[str], scope: Scope = "api") -> Caller:
        """``authorization``: the header's values. Raises InvalidKey, and AccessDenied where the key's scope differs."""
        name = self._keyring.recognise(authorization)
        if self._scopes[name] != scope:
            raise AccessDenied(f"this key opens {_DOORS[self._scopes[name]]}, and nothing else")
        return self._callers[name]


def callers_of(app: AppSettings) -> Callers | None:
    """None where there are no keys. Raises BadKeys, also where spending cannot be written down."""
    if not app.access.keyed:
        return None
    keys, folder, routers = configured_keys(app), app.access.spending_folder, app.router.replicas
    if folder is None:
        return Callers(keys, None, routers)
    try:
        return Callers(keys, SpendingFile(Path(folder).expanduser()), routers)
    except NotPrivate as error:
        raise BadKeys((f"access.spending_folder: {error}",)) from None
    except OSError as error:
        raise BadKeys((f"access.spending_folder: {error.strerror}",)) from None
