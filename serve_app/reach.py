"""Which keys can use which configured endpoints: what a configuration promises and cannot keep, and what does nothing.

Pure. Requests themselves are judged by ``eligibility``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from serve_app.access_settings import KeySettings
from serve_app.core.model import EndpointId, Pin
from serve_app.settings import AppSettings


def served(app: AppSettings) -> set[EndpointId]:
    """The endpoints that some model may use."""
    names = set[EndpointId]()
    for model in app.models.values():
        names.update(model.endpoints or app.endpoints)
    return names


def objection(key: KeySettings, endpoint: EndpointId, app: AppSettings) -> str | None:
    """Why requests with this key never go there, whoever owns it; None: they may."""
    if key.scope != "api":
        return f"has `scope: {key.scope}` and asks for no answers"
    if key.endpoints and endpoint not in key.endpoints:
        return f"may use {', '.join(key.endpoints)} only"
    if key.pin is not None and app.endpoints[endpoint].kind is not key.pin.kind:
        return f"is pinned to {key.pin.value}"
    return None


def may_own_devices(key: KeySettings) -> bool:
    """Whether a device that registers could serve it: a key's own limits hold for its devices, too."""
    return key.scope == "api" and not key.endpoints and key.pin is not Pin.CLOUD_ONLY


def reaches_any(name: str, key: KeySettings, app: AppSettings) -> bool:
    """Whether some endpoint of some model, or a device that joins, may serve its requests."""
    if app.devices.allow and may_own_devices(key):
        return True
    own_only = key.pin is Pin.DEVICE_ONLY and app.devices_have_owners
    for endpoint in served(app):
        owners = app.endpoints[endpoint].owners
        if (name in owners or (not owners and not own_only)) and objection(key, endpoint, app) is None:
            return True
    return False


def broken_promises(keys: Mapping[str, KeySettings], app: AppSettings) -> Iterator[str]:
    """What can never work of all keys together, with the field's path below ``args`` and the remedy."""
    for name, endpoint in app.endpoints.items():
        for owner in endpoint.owners:
            if owner not in keys:
                yield f"endpoints.{name}.owners: no API key named {owner!r}; known: {', '.join(keys)}"
            elif why := objection(keys[owner], name, app):
                yield f"endpoints.{name}.owners: the key {owner} {why}, so it owns this in vain; change one of the two"
    if app.devices.allow and all(key.scope != "operator" for key in keys.values()):
        yield "devices.allow: no key has `scope: operator`, so nobody could register a device; make one"
    if app.devices.allow and not any(map(may_own_devices, keys.values())):
        yield "devices.allow: no key could own a device: all are bound to `endpoints`, clouds or a scope; make one"


def without_effect(keys: Mapping[str, KeySettings], app: AppSettings) -> Iterator[str]:
    """What works and does nothing."""
    for name, key in keys.items():
        if key.scope != "api" and (idle := [*_limits(key)]):
            yield f"key {name}: {', '.join(idle)}: without effect, as `scope: {key.scope}` asks for no answers"
    if keys and all(key.scope != "api" for key in keys.values()):
        yield "no key has `scope: api`, so nobody can ask for an answer"
    reached = served(app)
    for name in app.endpoints:
        if name not in reached:
            yield f"endpoint {name}: no model has it among its `endpoints`, so nothing is ever sent there"


def _limits(key: KeySettings) -> Iterator[str]:
    """The names of what narrows its requests; the endpoints of one for reports are what it is for."""
    if key.pin is not None:
        yield "pin"
    if key.endpoints and key.scope != "device":
        yield "endpoints"
    yield from key.counted
    yield from (name for name in ("usd_per_day", "usd") if getattr(key, name) is not None)
