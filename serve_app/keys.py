"""API keys: made, configured and recognised. Nothing here keeps a key, only its SHA-256.

A key has 256 random bits, so there is no dictionary to try and a fast hash is as good as a slow one.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from serve_app.access_settings import Keys, KeySettings
from serve_app.core.errors import InvalidKey
from serve_app.core.model import EndpointKind, Pin
from serve_app.private_files import NotPrivate, require_private
from serve_app.reach import broken_promises, reaches_any
from serve_app.settings import AppSettings
from serve_app.strict_yaml import NotYaml, read_yaml
from serve_app.wording import explain

#: What scanners for leaked secrets may look for.
PREFIX = "sk-disco-"
_RANDOM_BYTES = 32
_MOST_BYTES = 2**20
_KEYS: TypeAdapter[dict[str, KeySettings]] = TypeAdapter(Keys)


class BadKeys(ValueError):
    """``problems``: one line each, with the field's path below the application's ``args`` and the remedy."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def new_key() -> str:
    return PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)


def sha256_of(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()


def bearer_digest(authorization: Sequence[str]) -> bytes:
    """The SHA-256 of the key in the values of the Authorization header. Raises InvalidKey where there is none."""
    scheme, _, token = authorization[0].partition(" ") if len(authorization) == 1 else ("", "", "")
    token = token.strip(" ")
    if scheme.lower() != "bearer" or not token:
        raise InvalidKey("an API key is needed here; send the header `Authorization: Bearer KEY`")
    # Headers arrive as Latin-1.
    return hashlib.sha256(token.encode("latin-1", "replace")).digest()


class Keyring:
    """Recognises keys. Every known one is compared in constant time, whichever it is."""

    def __init__(self, keys: Mapping[str, KeySettings]) -> None:
        self._known = [(bytes.fromhex(settings.sha256), name) for name, settings in keys.items()]

    def recognise(self, authorization: Sequence[str]) -> str:
        """The name of the key in the values of the Authorization header. Raises InvalidKey, which never quotes them."""
        digest = bearer_digest(authorization)
        found = None
        for known, name in self._known:
            if hmac.compare_digest(known, digest):
                found = name
        if found is None:
            raise InvalidKey("this API key is not known here; ask the operator for one")
        return found


def keys_file_is_elsewhere(app: AppSettings) -> bool:
    """Whether ``access.keys_file`` is named and not on this machine, so that its keys cannot be judged here."""
    return app.access.keys_file is not None and not Path(app.access.keys_file).expanduser().exists()


def configured_keys(app: AppSettings) -> dict[str, KeySettings]:
    """Those of ``access.keys`` and of ``access.keys_file`` together, by name. Raises BadKeys."""
    access = app.access
    sources = {"access.keys": access.keys}
    if access.keys_file is not None:
        sources["access.keys_file"] = _read(Path(access.keys_file).expanduser())
    problems: list[str] = []
    keys: dict[str, KeySettings] = {}
    for where, some in sources.items():
        for name, settings in some.items():
            problems += [f"{where}.{name}.{problem}" for problem in _problems(name, settings, app)]
            if name in keys:
                problems.append(f"{where}.{name}: there is another key of this name; choose another name")
            if any(settings.sha256 == other.sha256 for other in keys.values()):
                problems.append(f"{where}.{name}.sha256: another name has the same key; make one for each")
            keys[name] = settings
    problems += broken_promises(keys, app)
    if problems:
        raise BadKeys(tuple(problems))
    return keys


def _problems(name: str, settings: KeySettings, app: AppSettings) -> list[str]:
    """What the settings of a key of this name promise and this application cannot keep."""
    known = ", ".join(app.endpoints)
    problems = [
        f"endpoints: no endpoint named {endpoint!r}; known: {known}"
        for endpoint in settings.endpoints
        if endpoint not in app.endpoints
    ]
    pin, allowed = settings.pin, settings.endpoints or tuple(app.endpoints)
    may_join = app.devices.allow and pin is Pin.DEVICE_ONLY
    if (
        not problems
        and pin is not None
        and not may_join
        and all(app.endpoints[endpoint].kind is not pin.kind for endpoint in allowed)
    ):
        problems.append(f"pin: {pin.value} leaves none of the endpoints {', '.join(allowed)}; change one of the two")
    problems += [
        f"{limited}: {limit} cannot be shared by {app.router.replicas} router replicas; allow at least one for each"
        for limited, limit in settings.counted.items()
        if settings.scope == "api" and limit < app.router.replicas
    ]
    if settings.scope == "device":
        problems += _problems_of_reporter(settings, app)
    if not problems and settings.scope == "api" and not reaches_any(name, settings, app):
        problems.append(
            "endpoints: none that serves a model is left for this key; change its endpoints or pin, or their owners"
        )
    if settings.budgeted and app.access.spending_folder is None:
        problems.append("usd: a budget needs access.spending_folder, where it outlives a restart")
    return problems


def _problems_of_reporter(settings: KeySettings, app: AppSettings) -> list[str]:
    if not settings.endpoints:
        return ["endpoints: a key with `scope: device` names the devices that report with it"]
    return [
        f"endpoints: {endpoint} is a cloud, and only devices report; remove it"
        for endpoint in settings.endpoints
        if endpoint in app.endpoints and app.endpoints[endpoint].kind is EndpointKind.CLOUD
    ]


def _read(path: Path) -> dict[str, KeySettings]:
    try:
        document = read_yaml(_read_private(path))
        keys = _KEYS.validate_python(document)
    except ValidationError as error:
        raise BadKeys(tuple(f"access.keys_file: {line}" for line in explain(error, document))) from None
    except UnicodeDecodeError:
        raise BadKeys(("access.keys_file: the file is not UTF-8 text",)) from None
    except (NotPrivate, NotYaml) as error:
        raise BadKeys((f"access.keys_file: {error}",)) from None
    except OSError as error:
        raise BadKeys(
            (
                f"access.keys_file: {path} cannot be read ({error.strerror}); write a line of `disco key new NAME` "
                "there, or name another file",
            )
        ) from None
    if not keys:
        raise BadKeys(("access.keys_file: holds no key; `disco key new NAME` makes one",))
    return keys


def _read_private(path: Path) -> str:
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), encoding="utf-8") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise NotPrivate("must be a plain file")
        require_private(status)
        if status.st_size > _MOST_BYTES:
            raise NotPrivate(f"larger than {_MOST_BYTES} bytes")
        return file.read()
