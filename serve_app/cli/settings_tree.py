"""The settings as data: every field with its type in words, its default and meaning, and what is in force of it."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from serve_app.fields import NAME, PRIVATE

#: Default of a field that has none.
REQUIRED: Final = "required"

#: Shown in place of what nobody may see.
HIDDEN: Final = "(not shown)"

_CREDENTIALS: Final = re.compile(r"(?<=://)[^/@\s]+@")
_PLAIN: Final[Mapping[Any, str]] = {int: "whole number", float: "number", str: "text", SecretStr: "text"}


@dataclass(frozen=True, slots=True)
class Setting:
    """``default`` as JSON has it, or ``REQUIRED``. ``below``: the models that its value is made of, if any."""

    name: str
    kind: str
    default: Any
    meaning: str
    below: tuple[type[BaseModel], ...]
    many: bool


@dataclass(frozen=True, slots=True)
class InForce:
    """One setting of a configuration. ``given``: the file says it; otherwise it is the default."""

    path: str
    value: Any
    given: bool
    meaning: str


def settings_of(model: type[BaseModel]) -> list[Setting]:
    return [
        Setting(
            name,
            _words(field.annotation, field.metadata),
            _default(field),
            _meaning(field),
            _models(field.annotation),
            _stripped(field.annotation)[0] is dict,
        )
        for name, field in model.model_fields.items()
    ]


def in_force(settings: BaseModel, path: str) -> Iterator[InForce]:
    """Every setting in ``settings``; the plain ones of each level before what is below it. Secrets are ``HIDDEN``."""
    below: list[tuple[str, BaseModel]] = []
    for name, field in type(settings).model_fields.items():
        value, where = getattr(settings, name), f"{path}.{name}"
        if isinstance(value, BaseModel):
            below.append((where, value))
        elif isinstance(value, dict) and value and _models(field.annotation):
            below += [(f"{where}.{key}", inner) for key, inner in value.items()]
        else:
            yield InForce(where, _shown(value, field), name in settings.model_fields_set, _meaning(field))
    for where, inner in below:
        yield from in_force(inner, where)


def _meaning(field: FieldInfo) -> str:
    return (field.description or "").replace("``", "`")


def _shown(value: Any, field: FieldInfo) -> Any:
    if field.json_schema_extra == PRIVATE and value:
        return HIDDEN
    plain = _json(value)
    return _CREDENTIALS.sub("", plain) if isinstance(plain, str) else plain


def _json(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return [_json(item) for item in value]
    if isinstance(value, dict):
        return {key: _json(item) for key, item in value.items()}
    return value


def _default(field: FieldInfo) -> Any:
    if field.is_required():
        return REQUIRED
    return _json(field.get_default(call_default_factory=True, validated_data={}))


def _stripped(annotation: Any) -> tuple[Any, tuple[Any, ...], list[Any], bool]:
    """Its origin, its arguments, what ``Annotated`` and Field say of it, and whether it may be null."""
    limits: list[Any] = []
    nullable = False
    while True:
        origin, arguments = get_origin(annotation), get_args(annotation)
        if origin is Annotated:
            annotation = arguments[0]
            for extra in arguments[1:]:
                limits += extra.metadata if isinstance(extra, FieldInfo) else [extra]
            continue
        if origin in (Union, types.UnionType):
            inner = [argument for argument in arguments if argument is not type(None)]
            nullable = nullable or len(inner) < len(arguments)
            if len(inner) == 1:
                annotation = inner[0]
                continue
        return origin or annotation, arguments, limits, nullable


def _models(annotation: Any) -> tuple[type[BaseModel], ...]:
    origin, arguments, _, _ = _stripped(annotation)
    if isinstance(origin, type) and issubclass(origin, BaseModel):
        return (origin,)
    if origin is Literal:
        return ()
    return tuple(model for argument in arguments for model in _models(argument))


def _words(annotation: Any, metadata: list[Any]) -> str:
    origin, arguments, limits, nullable = _stripped(annotation)
    words = _kind(origin, arguments, [*limits, *metadata])
    return f"{words}, or `null`" if nullable else words


def _kind(origin: Any, arguments: tuple[Any, ...], limits: list[Any]) -> str:
    if origin is bool:
        return "`true` or `false`"
    if origin is str and any(getattr(limit, "pattern", None) == NAME for limit in limits):
        return "NAME"
    if origin in _PLAIN:
        return _PLAIN[origin] + _range(limits)
    if origin is Literal:
        return one_of(arguments)
    if isinstance(origin, type) and issubclass(origin, Enum):
        return one_of([member.value for member in origin])
    if origin is tuple:
        inner = _words(arguments[0], [])
        return f"list: {inner}" if arguments[-1] is Ellipsis else f"list of {len(arguments)}: {inner}"
    return "mapping"


def one_of(values: Sequence[object]) -> str:
    *most, last = (f"`{value}`" for value in values)
    return f"{', '.join(most)} or {last}" if most else last


def _range(limits: list[Any]) -> str:
    bounds = {
        name: getattr(limit, name)
        for limit in limits
        for name in ("ge", "gt", "le", "lt")
        if getattr(limit, name, None) is not None
    }
    if "ge" in bounds and "le" in bounds:
        return f" from {bounds['ge']:g} to {bounds['le']:g}".replace("e+06", ",000,000")
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    return "".join(f" {words[name]} {bound:g}" for name, bound in bounds.items())
