"""What every settings model is made of: the base class and the kinds of numbers and names."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

#: Letters, digits, dots, dashes and underscores.
NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"

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
