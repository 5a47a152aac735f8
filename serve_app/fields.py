"""What every settings model is made of: the base class and the kinds of numbers and names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
SHA256: Final = r"^[0-9a-f]{64}$"
VARIABLE: Final = r"^[A-Z_][A-Z0-9_]*$"
WEB_ADDRESS: Final = r"^https?://[^/\s]+(/\S*)?$"

#: What a value must be that has to match one of them.
PATTERNS: Final[Mapping[str, str]] = MappingProxyType(
    {
        NAME: "must be up to 64 letters, digits, dots, dashes and underscores, the first a letter or a digit",
        SHA256: "must be a SHA-256 in 64 hex digits, as `disco key new` makes it",
        VARIABLE: "must be the name of an environment variable in capitals, never the key itself",
        WEB_ADDRESS: "must be an address that begins with http:// or https://",
    }
)

_LABEL: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_LABEL_NAME: Final = re.compile(rf"(?:[A-Za-z0-9.-]{{1,253}}/)?{_LABEL}")
_LABEL_VALUE: Final = re.compile(rf"!?(?:{_LABEL}|in\({_LABEL}(?:, ?{_LABEL})*\))")


def _selectable(labels: dict[str, str]) -> dict[str, str]:
    """As Ray reads them; it would refuse others when the application is already on its way."""
    for name, value in labels.items():
        if not (_LABEL_NAME.fullmatch(name) and _LABEL_VALUE.fullmatch(value)):
            raise ValueError(
                "names and values of labels are up to 63 letters, digits, dots, dashes and underscores, such as "
                "{cpu-arch: arm64}; a value may also be !arm64, in(arm64, x86_64) or !in(arm64, x86_64)"
            )
    return labels


def whole(value: Any) -> Any:
    """JSON has one kind of numbers: 5.0 is a whole one, and some clients write it so."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Name = Annotated[str, Field(pattern=NAME)]
Whole = Annotated[int, BeforeValidator(whole)]
# Finite, as the models that have them say.
Seconds = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Amount = Annotated[float, Field(ge=0)]
Rate = Annotated[float, Field(ge=0.5, le=200)]

#: Labels of Ray's nodes, and what they must be.
Selector = Annotated[dict[str, str], AfterValidator(_selectable)]

#: ``json_schema_extra`` of a field whose value is shown to nobody.
PRIVATE: Final[dict[str, JsonValue]] = {"private": True}


class Settings(BaseModel):
    """Strict: true and "1" are no numbers, 1 and "yes" no flags. Fields of what a document has no type for, such as
    enums and tuples, say ``strict=False``, which does not reach what is in them."""

    model_config = ConfigDict(
        strict=True,
        allow_inf_nan=False,
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        protected_namespaces=(),
    )
