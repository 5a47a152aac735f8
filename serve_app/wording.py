"""What is wrong with a document, in this project's words instead of pydantic's: the field and what is expected there,
never the value."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from serve_app.fields import PATTERNS

#: Characters of a name in a message.
_LONGEST_NAME: Final = 64

_ARRAYS: Final = frozenset({"list_type", "tuple_type"})
_OBJECTS: Final = frozenset({"dict_type", "model_type", "model_attributes_type"})

#: By pydantic's kinds of error; the limits are filled in.
_EXPECTED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "missing": "this field is required",
        "extra_forbidden": "unknown key; check the spelling or remove it",
        "string_type": "must be a string",
        "string_too_short": "must not be empty",
        "string_pattern_mismatch": "must match {pattern}",
        "bool_type": "must be true or false",
        "int_type": "must be a whole number",
        "float_type": "must be a number",
        "finite_number": "must be a finite number",
        "greater_than": "must be more than {gt}",
        "greater_than_equal": "must be at least {ge}",
        "less_than": "must be less than {lt}",
        "less_than_equal": "must be at most {le}",
        "literal_error": "must be one of {expected}",
        "enum": "must be one of {expected}",
        "union_tag_invalid": "type: must be one of {expected_tags}",
        "union_tag_not_found": "type: this field is required",
        "too_short": "must not be empty; give at least one",
        "too_long": "at most {max_length} are taken; give fewer",
        "date_type": "must be a date, such as 2026-01-31",
        "date_parsing": "must be a date, such as 2026-01-31",
        "date_from_datetime_parsing": "must be a date, such as 2026-01-31",
        "date_from_datetime_inexact": "must be a date, such as 2026-01-31",
        "json_invalid": "not valid JSON",
        "invalid-json-value": "must be what JSON has: text, a number, true, false, null, a list or a mapping",
    }
)


def expected(item: Mapping[str, Any]) -> str | None:
    """For one of pydantic's errors; None for a kind that has no words here, or other ones by the kind of document."""
    kind, limits = item["type"], item.get("ctx", {})
    if kind == "value_error":
        return str(item["msg"]).removeprefix("Value error, ")
    if kind == "string_pattern_mismatch" and limits["pattern"] in PATTERNS:
        return PATTERNS[limits["pattern"]]
    whole = {name: int(x) if isinstance(x, float) and x.is_integer() else x for name, x in limits.items()}
    words = _EXPECTED.get(kind)
    return None if words is None else words.format_map(whole)


def wants_array(item: Mapping[str, Any]) -> bool:
    return item["type"] in _ARRAYS


def wants_object(item: Mapping[str, Any]) -> bool:
    return item["type"] in _OBJECTS


def explain(error: Exception, document: object = None) -> list[str]:
    """One line per problem of a pydantic ValidationError over a YAML document: the field's path, and what is wrong.

    ``document``: what was validated. With it, paths leave out the names of union members that pydantic inserts.
    """
    details: Any = getattr(error, "errors", None)
    if details is None:
        return [str(error)]
    lines = []
    for item in details(include_input=False, include_url=False):
        path = ".".join(_path(item["loc"], document, whole=item["type"] == "value_error"))
        message = _in_yaml(item)
        lines.append(f"{path}: {message}" if path else message)
    return lines


def _in_yaml(item: Mapping[str, Any]) -> str:
    if wants_array(item):
        return "must be a list, such as [a, b]"
    if wants_object(item):
        return "must be a mapping, such as {a: b}"
    # Serve's own schema has kinds that ours has not.
    return expected(item) or str(item["msg"])


def _path(loc: tuple[int | str, ...], document: object, *, whole: bool) -> list[str]:
    """``whole``: the error is about all of a value, so that the last part may be a union member's name."""
    parts = []
    for rank, part in enumerate(loc):
        inside = document
        if isinstance(document, dict):
            inside = document.get(part)
        elif isinstance(document, list | tuple) and isinstance(part, int) and part < len(document):
            inside = document[part]
        is_tag = isinstance(document, dict) and part not in document and (whole or rank + 1 < len(loc))
        if not is_tag:
            parts.append(_shown(str(part)))
            document = inside
    return parts


def _shown(name: str) -> str:
    """A name may be anything where the document is a stranger's."""
    return "".join(letter if letter.isprintable() else "?" for letter in name[:_LONGEST_NAME])
