"""Which devices have joined, who may use them, and what they last said: this router's copy of what all routers know."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from serve_app.access_settings import KeySettings
from serve_app.core.energy import DeviceState
from serve_app.core.errors import AccessDenied, InvalidKey, InvalidRequest, UnknownDevice
from serve_app.core.lww import LwwMap, Told, Word
from serve_app.core.model import EndpointId, EndpointKind
from serve_app.device_address import resolve
from serve_app.devices import Device, DeviceRegistration, DeviceReport
from serve_app.keys import bearer_digest, new_key, sha256_of
from serve_app.reach import may_own_devices
from serve_app.server_url import ServerUrl
from serve_app.settings import AppSettings


class FleetNews(NamedTuple):
    """What one process knows, on its way to another."""

    devices: Mapping[str, Told[Device]]
    reports: Mapping[str, Told[DeviceReport]]


class FleetLog:
    """Registrations and the last report of each device. ``author``: a name that no other process has."""

    def __init__(self, author: str) -> None:
        self.devices = LwwMap[Device](author)
        self.reports = LwwMap[DeviceReport](author)

    def tell(self, now: float) -> FleetNews:
        return FleetNews(self.devices.tell(now), self.reports.tell(now))

    def merge(self, news: FleetNews, now: float) -> None:
        self.devices.merge(news.devices, now)
        self.reports.merge(news.reports, now)


class Fleet:
    """``clock``: seconds that only grow."""

    def __init__(
        self,
        app: AppSettings,
        keys: Mapping[str, KeySettings],
        author: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._keys = keys
        self._clock = clock
        self._log = FleetLog(author)

    # --- what is known ------------------------------------------------------------------------------------------

    @property
    def devices(self) -> dict[EndpointId, Device]:
        return self._log.devices.values()

    def silent_seconds(self, name: EndpointId) -> float:
        """Since a registered device was heard of, or registered."""
        heard = max(word.at for word in (self._log.devices.word(name), self._log.reports.word(name)) if word)
        return self._clock() - heard

    def is_silent(self, name: EndpointId) -> bool:
        return self.silent_seconds(name) > self._app.devices.away_after

    def report(self, name: EndpointId) -> Word[DeviceReport] | None:
        """The last one, while it is not too old to be believed."""
        word = self._log.reports.word(name)
        fresh = word is not None and self._clock() - word.at <= self._app.devices.away_after
        return word if fresh else None

    def states(self) -> dict[EndpointId, DeviceState]:
        """Of all that said something lately, configured ones too."""
        reports = {name: self.report(name) for name in self._log.reports.values()}
        return {name: word.value.state for name, word in reports.items() if word is not None and word.value is not None}

    def recognises(self, name: EndpointId, authorization: Sequence[str]) -> bool:
        """Whether the header holds the token of the device of this name."""
        word = self._log.devices.word(name)
        if word is None or word.value is None:
            return False
        try:
            digest = bearer_digest(authorization)
        except InvalidKey:
            return False
        return hmac.compare_digest(digest, bytes.fromhex(word.value.token_sha256))

    # --- what is said -------------------------------------------------------------------------------------------

    async def register(self, registration: DeviceRegistration) -> str:
        """The token with which the device reports; nobody learns it again. One of the same name is replaced.

        Raises AccessDenied where registration is off, InvalidRequest for what cannot be.
        """
        if not self._app.devices.allow:
            raise AccessDenied("devices are not registered here: devices.allow names no network")
        self._check(registration)
        try:
            url = ServerUrl.parse(registration.base_url)
        except ValueError as error:
            raise InvalidRequest(str(error), "base_url") from None
        address = await resolve(url, self._app.devices.networks)
        token = new_key()
        self._log.devices.say(
            registration.name, Device(registration, address, sha256_of(token.encode())), self._clock()
        )
        return token

    def remove(self, name: EndpointId) -> None:
        """Raises UnknownDevice."""
        if self._log.devices.word(name) is None:
            raise UnknownDevice("no device of this name is registered", "name")
        self._log.devices.say(name, None, self._clock())
        self._log.reports.say(name, None, self._clock())

    def hear(self, name: EndpointId, report: DeviceReport) -> None:
        """From a registered device, or a configured one. Raises UnknownDevice."""
        configured = self._app.endpoints.get(name)
        if self._log.devices.word(name) is None and (configured is None or configured.kind is not EndpointKind.DEVICE):
            raise UnknownDevice("no device of this name is registered or configured", "name")
        self._log.reports.say(name, report, self._clock())

    def tell(self) -> FleetNews:
        return self._log.tell(self._clock())

    def merge(self, news: FleetNews) -> None:
        self._log.merge(news, self._clock())

    def _check(self, registration: DeviceRegistration) -> None:
        """What the registration promises and this application cannot keep."""
        known = self.devices
        if registration.name in self._app.endpoints:
            raise InvalidRequest("name: a configured endpoint has this name; choose another", "name")
        if len(known) >= self._app.devices.most and registration.name not in known:
            raise InvalidRequest(f"name: {len(known)} devices are registered (devices.most); remove one", "name")
        for served in registration.serves:
            if served not in self._app.models:
                raise InvalidRequest(f"serves: no such served name; known: {', '.join(self._app.models)}", "serves")
        for owner in registration.owners:
            if problem := self._objection(owner):
                raise InvalidRequest(f"owners: {problem}", "owners")
        registration.believed()

    def _objection(self, owner: str) -> str | None:
        key = self._keys.get(owner)
        if key is None or key.scope != "api":
            names = ", ".join(name for name, settings in self._keys.items() if settings.scope == "api")
            return f"each must be the name of an API key that asks for answers; known: {names or 'none'}"
        if not may_own_devices(key):
            # A key's own limits hold, so the device would never serve it.
            return f"the key {owner} may use {'clouds only' if key.pin else ', '.join(key.endpoints)}"
        return None
