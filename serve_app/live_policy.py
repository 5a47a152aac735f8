"""The part of the live settings that can be read, and changed, over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from serve_app.body import field_path, refused
from serve_app.core.errors import InvalidRequest
from serve_app.settings import LiveSettings

#: What a change looks like.
EXAMPLE: Final = '{"policy": {"budget": 0.3}}'

#: Prices and limits stay in the file.
SECTIONS: Final = ("regime", "policy", "migration", "reader")


def policy_of(live: LiveSettings) -> dict[str, Any]:
    return live.model_dump(mode="json", include=set(SECTIONS))


def retuned(live: LiveSettings, changes: Mapping[str, Any]) -> LiveSettings:
    """``live`` with these fields of these sections. Raises InvalidRequest, naming the field, where that cannot be."""
    document = live.model_dump(mode="json")
    for section, fields in changes.items():
        if section not in SECTIONS:
            known = f"only {', '.join(SECTIONS)} can be changed here; all else is in the configuration"
            param = field_path((section,))
            raise InvalidRequest(f"{param}: {known}" if param else known, param or None)
        inside = isinstance(document[section], dict) and isinstance(fields, Mapping)
        document[section] = document[section] | fields if inside else fields
    try:
        return LiveSettings.model_validate(document)
    except ValidationError as error:
        raise refused(error) from None
