"""Profiles of one's own: written, read back, believed in, and refused when they are none."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from actors.engines.profile_file import MeasuredEnergy, ProfileFile, load_prior
from actors.engines.profiles import DeviceProfile, load_profile
from serve_app.cli.engines import engine_problems
from serve_app.core.latency import LatencyProfile, LinearTtft
from serve_app.engine_settings import EngineSettings
from serve_app.priors import prior_profile
from serve_app.settings import AppSettings

MEASURED = ProfileFile(
    name="laptop",
    engine="llama.cpp: smollm2-135m-instruct",
    date=date(2026, 3, 1),
    samples=15,
    intercept=0.25,
    prefill_rate=80.0,
    decode_rate=12.5,
    scatter=0.01,
    energy=MeasuredEnergy(prefill_joules_per_token=0.2, decode_joules_per_token=0.5, source="RAPL: package-0"),
)

ENGINES: list[dict[str, Any]] = [
    {"type": "simulated"},
    {"type": "replay", "path": "streams.jsonl"},
    {"type": "llama_cpp"},
    {"type": "vllm"},
    {"type": "openai_http", "base_url": "http://127.0.0.1:1/v1", "model": "m"},
    {"type": "shaped", "profile": "openai-gpt-4-1106-preview", "engine": {"type": "simulated"}},
]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "laptop.json"
    MEASURED.write(path)
    return path


def problems(engine: dict[str, Any]) -> list[str]:
    return engine_problems(AppSettings.model_validate({"endpoints": {"far": {"kind": "device", "engine": engine}}}))


def test_what_was_written_is_read_back(written: Path) -> None:
    assert ProfileFile.read(written) == MEASURED
    without = MEASURED.model_copy(update={"energy": None})
    without.write(written)
    assert ProfileFile.read(written) == without


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine["type"])
def test_every_engine_may_name_what_to_believe_at_first(engine: dict[str, Any], written: Path) -> None:
    parse = TypeAdapter[EngineSettings](EngineSettings).validate_python
    own = prior_profile(parse(engine | {"prior": str(written)}))
    assert own == LatencyProfile(LinearTtft(1 / 80.0, 0.25), 80.0, 12.5)
    shipped = prior_profile(parse(engine | {"prior": "s23-gemma3-1b-q4"}))
    phone = load_profile("s23-gemma3-1b-q4")
    assert isinstance(phone, DeviceProfile)
    assert (shipped.prefill_rate, shipped.decode_rate) == (phone.prefill_rate, phone.decode_rate)
    assert prior_profile(parse(engine)) not in (own, shipped)


def test_an_imitation_is_believed_in_as_a_whole() -> None:
    inner = {"type": "simulated", "prior": "s23-gemma3-1b-q4"}
    with pytest.raises(ValidationError, match=r"engine\.prior: .* beside its profile; move it there"):
        TypeAdapter[EngineSettings](EngineSettings).validate_python(
            {"type": "shaped", "profile": "openai-gpt-4-1106-preview", "engine": inner}
        )


@pytest.mark.parametrize("engine", [ENGINES[0], ENGINES[5]], ids=lambda engine: engine["type"])
def test_a_prior_is_looked_at_before_anything_starts(engine: dict[str, Any], written: Path, tmp_path: Path) -> None:
    assert problems(engine | {"prior": str(written)}) == []
    (unknown,) = problems(engine | {"prior": "abacus"})
    assert unknown.startswith("applications.0.args.endpoints.far.engine.prior: no profile named 'abacus'; known: ")
    assert unknown.endswith("and the .json files that `disco profile` writes")
    (absent,) = problems(engine | {"prior": str(tmp_path / "none.json")})
    assert absent.endswith("none.json cannot be read; name a file that `disco profile` wrote")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"prefill_rate": 0}, "prefill_rate"),
        ({"decode_rate": -1.0}, "decode_rate"),
        ({"intercept": -0.1}, "intercept"),
        ({"intercept": None}, "intercept"),
        ({"samples": 0}, "samples"),
        ({"speed": 3}, "speed: unknown key"),
        ({"energy": {"prefill_joules_per_token": 1}}, r"energy\.decode_joules_per_token"),
    ],
)
def test_a_file_with_impossible_figures_is_refused_by_field(written: Path, change: Any, complaint: str) -> None:
    written.write_text(json.dumps(json.loads(written.read_text()) | change))
    with pytest.raises(ValueError, match=rf"engine\.prior: .*laptop\.json is no measured profile \({complaint}.*wrote"):
        load_prior(str(written))


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"null", b'{"intercept": NaN}'])
def test_a_file_that_is_something_else_is_refused(written: Path, content: bytes) -> None:
    written.write_bytes(content)
    with pytest.raises(ValueError, match=r"laptop\.json is no measured profile .* name a file that `disco profile`"):
        load_prior(str(written))


def test_somebody_without_a_home_is_no_crash() -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        load_prior("~nobody-of-that-name/x.json")
