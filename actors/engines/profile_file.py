"""Profiles that `disco profile` measured for somebody: one JSON file each, beside those that are shipped."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from actors.engines.profiles import DeviceProfile, Profile, Provenance, known_profiles, load_profile
from serve_app.fields import Amount, Name, Settings, Whole
from serve_app.wording import explain


class MeasuredEnergy(Settings):
    """Joules per token above what the machine takes when it rests. ``source``: the counters that were read."""

    prefill_joules_per_token: Amount
    decode_joules_per_token: Amount
    source: str


class ProfileFile(Settings):
    """TTFT is ``intercept`` + tokens / ``prefill_rate``; measured ones missed that by ``scatter`` s in the median."""

    name: Name
    engine: str = Field(description="What was measured, in words.")
    date: Annotated[date, Field(strict=False)]
    samples: Whole = Field(ge=1, description="Streams that were measured.")
    intercept: Amount = Field(description="Seconds.")
    prefill_rate: float = Field(gt=0, description="Prompt tokens per second.")
    decode_rate: float = Field(gt=0, description="Tokens per second.")
    scatter: Amount
    energy: MeasuredEnergy | None = None
    energy_missing: str = Field(default="", description="Why no energy was measured.")

    @classmethod
    def read(cls, path: Path) -> ProfileFile:
        """Raises ``ValueError`` with what is wrong and the remedy, and without the path."""
        remedy = "name a file that `disco profile` wrote"
        try:
            return cls.model_validate_json(path.expanduser().read_bytes())
        except (OSError, RuntimeError):
            # RuntimeError: "~somebody", who has no home here.
            raise ValueError(f"cannot be read; {remedy}") from None
        except ValidationError as error:
            raise ValueError(f"is no measured profile ({explain(error)[0]}); {remedy}") from None

    def write(self, path: Path) -> None:
        """Raises ``OSError``."""
        path.write_text(self.model_dump_json(indent=2) + "\n", "utf-8")

    @property
    def profile(self) -> DeviceProfile:
        provenance = Provenance(f"`disco profile` of {self.engine}", self.date.isoformat(), "own", self.samples)
        return DeviceProfile(self.name, self.prefill_rate, self.decode_rate, self.intercept, provenance)


def load_prior(reference: str) -> Profile:
    """``reference``: a shipped profile's name, or the path of a file. Raises ``ValueError`` that says what would do."""
    if reference in known_profiles():
        return load_profile(reference)
    if not reference.endswith(".json"):
        raise ValueError(
            f"engine.prior: no profile named {reference!r}; known: {', '.join(known_profiles())}, "
            "and the .json files that `disco profile` writes"
        )
    try:
        return ProfileFile.read(Path(reference)).profile
    except ValueError as error:
        raise ValueError(f"engine.prior: {reference} {error}") from None
