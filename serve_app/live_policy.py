"""The part of the live settings that can be read, and changed, over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from serve_app.core.errors import InvalidRequest
from serve_app.settings import LiveSettings, explain

#: Prices and limits stay in the file.
SECTIONS: Final = ("regime", "policy", "migration", "reader")


def policy_of(live: LiveSettings) -> dict[str, Any]:
    return live.model_dump(mode="json", include=set(SECTIONS))


def retuned(live: LiveSettings, changes: Mapping[str, Any]) -> LiveSettings:
    """``live`` with these fields of these sections. Raises InvalidRequest where that cannot be."""
    document = live.model_dump(mode="json")
    for section, fields in changes.items():
        if section not in SECTIONS:
            raise InvalidRequest(f"only {', '.join(SECTIONS)} can be changed here; all else is in the configuration")
        inside = isinstance(document[section], dict) and isinstance(fields, Mapping)
        document[section] = document[section] | fields if inside else fields
    try:
        return LiveSettings.model_validate(document)
    except ValueError as error:
        raise InvalidRequest("; ".join(explain(error, document))) from None
