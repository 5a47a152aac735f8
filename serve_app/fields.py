"""What every settings model is made of: the base class and the kinds of numbers and names."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, JsonValue

#: Letters, digits, dots, dashes and underscores.
NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"

Name = Annotated[str, Field(pattern=NAME)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=0.5, le=200, allow_inf_nan=False)]

#: ``json_schema_extra`` of a field whose value is shown to nobody.
PRIVATE: Final[dict[str, JsonValue]] = {"private": True}


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, protected_namespaces=())
