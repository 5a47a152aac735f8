"""Who may use the router, and how much: the part of ``settings``' tree under ``access``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from serve_app.core.model import Pin
from serve_app.fields import PRIVATE, SHA256, Amount, Name, Settings, Whole

_ORIGIN = re.compile(r"https?://[a-z0-9.\-\[\]:]+")
_KEY_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,31}")

#: What a key opens: /v1, /metrics, what only the operator may do, under /disco, or the reports of its devices there.
Scope = Literal["api", "metrics", "operator", "device"]


def is_key_name(value: object) -> bool:
    """Too short for a key that `disco key new` made, so that no key is shown where its name should be."""
    return isinstance(value, str) and _KEY_NAME.fullmatch(value) is not None


def _named(keys: Any) -> Any:
    if isinstance(keys, dict) and not all(is_key_name(name) for name in keys):
        raise ValueError("each key needs a name: a plain word of up to 32 characters, and never the key itself")
    return keys


def _absolute(path: str) -> str:
    if not Path(path).expanduser().is_absolute():
        raise ValueError("must be an absolute path, on the router's node")
    return path


def _origin(origin: str) -> str:
    if not _ORIGIN.fullmatch(origin):
        raise ValueError("each must be a scheme and a host in lower case, with the port if any: https://chat.example")
    return origin


class KeyLimits(Settings):
    """What a caller may do. A limit that is null does not apply.

    ``pin`` and ``endpoints`` narrow every request. Budgets are shared through ``spending_folder``; of the other limits
    each router replica grants its share.
    """

    pin: Annotated[Pin, Field(strict=False)] | None = Field(
        default=None, description="Keeps every request on one kind of endpoint."
    )
    endpoints: tuple[Name, ...] = Field(default=(), strict=False, description="The only ones it may use; empty: any.")
    streams: Whole | None = Field(default=None, ge=1, le=1_000_000, description="Answers under way at once.")
    requests_per_minute: Whole | None = Field(default=None, ge=1, le=100_000, description="In any 60 seconds.")
    usd_per_day: Amount | None = Field(
        default=None, description="Budget of a day in UTC, USD by the report's cost_usd."
    )
    usd: Amount | None = Field(default=None, description="Budget since the first request, USD.")

    def shared_by(self, routers: int) -> KeyLimits:
        """What one of so many router replicas may grant, so that together they never grant more."""
        parts = {name: limit // routers for name, limit in self.counted.items()}
        return self.model_copy(update=parts)

    @property
    def counted(self) -> dict[str, int]:
        """The limits, by name, that are counted where requests arrive."""
        limits = {"streams": self.streams, "requests_per_minute": self.requests_per_minute}
        return {name: limit for name, limit in limits.items() if limit is not None}

    @property
    def budgeted(self) -> bool:
        return self.usd is not None or self.usd_per_day is not None


class KeySettings(KeyLimits):
    """One API key. ``sha256`` is all that is known of it: whoever reads the configuration cannot use it."""

    sha256: str = Field(
        pattern=SHA256,
        description="Of the key's text, in hex; see `disco key new`.",
        json_schema_extra=PRIVATE,
    )
    scope: Scope = Field(default="api", description="What it opens: /v1, /metrics, /disco, or its devices' reports.")


Keys = Annotated[dict[str, KeySettings], BeforeValidator(_named)]


class AccessSettings(Settings):
    """Without keys the router serves loopback only, unless ``open`` says that anyone may use it.

    With keys, everything under /v1 needs one, and the router may listen anywhere.
    """

    open: bool = Field(default=False, description="Without keys: everybody who can reach the router may use it.")
    page: bool = Field(default=True, description="Whether the page at / is shown; see docs/page.md.")
    allowed_hosts: tuple[str, ...] = Field(
        strict=False,
        default=("localhost", "127.0.0.1", "[::1]"),
        description="Values of the Host header, without the port. Not looked at with keys.",
    )
    allowed_origins: tuple[Annotated[str, AfterValidator(_origin)], ...] = Field(
        default=(), strict=False, description="Of pages that browsers may let use the router from elsewhere (CORS)."
    )
    keys: Keys = Field(default_factory=dict, description="By name.")
    keys_file: Annotated[str, AfterValidator(_absolute)] | None = Field(
        default=None, description="Path of a YAML file like `keys`, closed to strangers; read at the start."
    )
    spending_folder: Annotated[str, AfterValidator(_absolute)] | None = Field(
        default=None, description="Path of the folder where it is written down what each key has spent."
    )

    @property
    def keyed(self) -> bool:
        return bool(self.keys) or self.keys_file is not None

    @model_validator(mode="after")
    def _one_way_in(self) -> AccessSettings:
        if self.open and self.keyed:
            raise ValueError("open and keys contradict each other; remove one of them")
        return self
