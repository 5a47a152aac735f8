"""`disco profile`: what it writes and prints, and how each way of failing looks from outside."""

from __future__ import annotations

import asyncio
import copy
import io
import json
import signal
from collections.abc import AsyncGenerator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from actors.engines.base import EngineInfo
from actors.engines.models import fetch
from actors.engines.profile_file import ProfileFile
from actors.engines.profiles import DeviceProfile
from serve_app.cli import measure as measuring
from serve_app.cli import profiling
from serve_app.cli.configfile import load
from serve_app.cli.energy_meter import EnergyMeter
from serve_app.cli.engines import MissingPackage
from serve_app.cli.exits import BAD_INPUT, FAILED, INTERRUPTED, OK, UNFIT, UNREACHABLE
from serve_app.cli.profiling import ProfileOptions, profile
from serve_app.core.errors import EndpointFault, EndpointUnavailable
from serve_app.core.model import GenerationRequest, StreamItem
from serve_app.engine_settings import LlamaCppEngineSettings
from serve_app.priors import prior_profile
from tests.cli.test_energy_meter import zone

QUICK = {"type": "simulated", "overhead": 0.01, "prefill_rate": 20_000.0, "decode_rate": 1000.0}


def configuration(folder: Path, **engines: Any) -> str:
    """A file with these engines behind endpoints of their names."""
    document = copy.deepcopy(dict(load("simulated").document))
    application = document["applications"][0]
    endpoints = {name: {"kind": "device", "slots": 2, "engine": engine} for name, engine in engines.items()}
    application["args"] = {"endpoints": endpoints, "models": {"disco": {}}}
    application["deployments"] = []
    path = folder / "own.yaml"
    path.write_text(yaml.safe_dump(document))
    return str(path)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(
    endpoint: str, config: str = "simulated", output: Path | None = None, *, as_json: bool = False
) -> tuple[int, str]:
    out = io.StringIO()
    options = ProfileOptions(endpoint, config, output, as_json)
    return profile(options, Console(file=out, width=200, color_system=None)), out.getvalue()


def test_the_profile_is_written_shown_and_believed(here: Path) -> None:
    config = configuration(here, laptop=QUICK, other=QUICK)
    code, shown = run("laptop", config)
    assert code == OK
    file = ProfileFile.read(here / "laptop.profile.json")
    assert (file.name, file.samples) == ("laptop", 15)
    assert f"prior: {here / 'laptop.profile.json'}" in shown
    assert f"{file.decode_rate:.4g} tokens per second" in shown
    assert "energy       not measured: nothing computes here" in shown
    believed = prior_profile(LlamaCppEngineSettings(prior="laptop.profile.json"))
    assert (believed.prefill_rate, believed.decode_rate) == (file.prefill_rate, file.decode_rate)
    named = configuration(here, laptop=QUICK | {"prior": str(here / "laptop.profile.json")})
    assert load(named).app.endpoints["laptop"].engine.prior is not None


@pytest.mark.parametrize(("scatter", "warned"), [(0.02, False), (0.9, True)])
def test_a_busy_machine_is_noticed(scatter: float, warned: bool) -> None:
    out = io.StringIO()
    file = ProfileFile(
        name="laptop",
        engine="llama.cpp",
        date=date(2026, 3, 1),
        samples=15,
        intercept=0.2,
        prefill_rate=100.0,
        decode_rate=10.0,
        scatter=scatter,
    )
    view = profiling._view(file, Path("laptop.profile.json"), LlamaCppEngineSettings())
    Console(file=out, width=200, color_system=None).print(view)
    assert ("measure again" in out.getvalue()) is warned


def test_as_json_it_prints_what_it_writes(here: Path) -> None:
    config = configuration(here, laptop=QUICK)
    path = here / "mine.json"
    for _ in range(2):
        code, shown = run("laptop", config, path, as_json=True)
        assert code == OK
        assert json.loads(shown) == json.loads(path.read_text())


def test_progress_is_shown_where_somebody_looks(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configuration(here, laptop=QUICK)
    assert run("laptop", config)[0] == OK
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert run("laptop", config)[0] == OK
    shown = capsys.readouterr().err
    assert "simulated: no model: measuring" in shown
    assert "16/16" in shown


# --- refusals -------------------------------------------------------------------------------------------------------


def test_an_unknown_endpoint_is_answered_with_the_known_ones(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("laptop")[0] == BAD_INPUT
    assert "simulated has no endpoint named 'laptop'; known: cloud, phone" in capsys.readouterr().err
    assert list(here.iterdir()) == []


def test_a_bad_configuration_is_explained(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("laptop", configuration(here, laptop=QUICK | {"speed": 3}))[0] == BAD_INPUT
    assert "endpoints.laptop.engine.speed: unknown key" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("own.yaml", "own.yaml must end in .json"),
        ("notes.json", "notes.json is there and is no profile"),
        ("nowhere/x.json", "x.json cannot be written"),
    ],
)
def test_a_place_that_cannot_take_the_profile_is_refused_before_the_measurement(
    here: Path, name: str, complaint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "notes.json").write_text('{"mine": 1}')
    monkeypatch.setattr(profiling, "make_engine", None)
    assert run("laptop", configuration(here, laptop=QUICK), here / name)[0] == BAD_INPUT
    assert complaint in capsys.readouterr().err.replace("\n", "")
    assert (here / "notes.json").read_text() == '{"mine": 1}'


def test_a_missing_package_comes_with_the_remedy(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(profiling, "missing_packages", lambda app: [MissingPackage("vllm", "vllm", "pip install it")])
    assert run("phone")[0] == UNFIT
    assert "the vllm engine needs vllm: pip install it" in capsys.readouterr().err


class Failing:
    """``at``: when it fails with ``error``."""

    def __init__(self, at: str, error: BaseException) -> None:
        self._at = at
        self._error = error
        self.closed = False

    @property
    def info(self) -> EngineInfo:
        return EngineInfo("m", 4096, None)

    async def start(self) -> None:
        if self._at == "start":
            raise self._error

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[StreamItem, None]:
        raise self._error
        yield

    async def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("at", ["start", "generate"])
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EndpointUnavailable("[x] no such file; `disco model fetch`"), FAILED),
        (EndpointFault("[x] broken", "phone"), FAILED),
        (KeyboardInterrupt(), INTERRUPTED),
    ],
)
def test_an_engine_that_fails_is_closed_and_its_reason_told(
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    at: str,
    error: BaseException,
    code: int,
) -> None:
    engine = Failing(at, error)
    monkeypatch.setattr(profiling, "make_engine", lambda settings, slots, threads: engine)
    if isinstance(error, KeyboardInterrupt):
        monkeypatch.setattr(profiling, "_started", interrupted)
    assert run("phone")[0] == code
    assert engine.closed
    shown = capsys.readouterr().err
    assert shown == (f"simulated: no model: {error.args[0]}\n" if error.args else "")
    assert list(here.iterdir()) == []


class Slow(Failing):
    """Loads for ever, says how far it is, and is interrupted as soon as it did."""

    stopped = False

    @property
    def progress(self) -> str:
        signal.raise_signal(signal.SIGINT)
        return "loading [x]"

    async def start(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped = True


@pytest.mark.usefixtures("listens_to_ctrl_c")
def test_a_start_that_is_interrupted_is_broken_off(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Slow("never", KeyboardInterrupt())
    monkeypatch.setattr(profiling, "make_engine", lambda settings, slots, threads: engine)
    assert run("phone")[0] == INTERRUPTED
    assert engine.stopped
    assert engine.closed


async def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_server_that_is_not_there_is_waited_for_and_then_unreachable(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(profiling, "_SERVER_LIMIT", 0.1)
    far = {"type": "openai_http", "base_url": "http://127.0.0.1:9/v1", "model": "m"}
    assert run("far", configuration(here, far=far))[0] == UNREACHABLE
    assert "m at http://127.0.0.1:9/v1: no connection to the server" in capsys.readouterr().err


# --- energy ---------------------------------------------------------------------------------------------------------

LLAMA = {"type": "llama_cpp", "context_length": 256}
FAR = {"type": "openai_http", "base_url": "http://127.0.0.1:9/v1", "model": "m"}


def meter_of(here: Path, engine: dict[str, Any], **placement: Any) -> tuple[EnergyMeter | None, str]:
    endpoint = load(configuration(here, one=engine)).app.endpoints["one"]
    changed = endpoint.placement.model_copy(update=placement)
    return profiling._meter(endpoint.model_copy(update={"placement": changed}))


def test_only_what_the_counters_see_is_measured(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zone(here / "powercap", "intel-rapl:0", "package-0")
    found = EnergyMeter.find(here / "powercap")
    monkeypatch.setattr(EnergyMeter, "find", lambda: found)
    assert meter_of(here, LLAMA) == (found, "")
    assert meter_of(here, {"type": "shaped", "profile": "s23-gemma3-1b-q4", "engine": LLAMA}) == (found, "")
    assert meter_of(here, LLAMA, num_gpus=1.0) == (None, "the processor's counters do not see GPUs")
    assert meter_of(here, QUICK) == (None, "nothing computes here")
    assert meter_of(here, FAR) == (None, "what a server takes is not seen from here")


def test_measured_energy_is_written_and_ready_for_the_prices(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = zone(here / "powercap", "intel-rapl:0", "package-0")
    found = EnergyMeter.find(here / "powercap")
    counted = 0

    def joules() -> float:
        nonlocal counted
        counted += 1
        return float(counted)

    monkeypatch.setattr(found, "joules", joules)
    monkeypatch.setattr(profiling, "_meter", lambda endpoint: (found, ""))
    code, shown = run("laptop", configuration(here, laptop=QUICK))
    assert code == OK
    energy = ProfileFile.read(here / "laptop.profile.json").energy
    assert energy is not None
    assert energy.source == "RAPL: package-0"
    prefill, decode = energy.prefill_joules_per_token, energy.decode_joules_per_token
    assert f"prefill_joules_per_token: {prefill:.3g}, decode_joules_per_token: {decode:.3g}" in shown
    assert package.is_dir()


# --- the real engine ------------------------------------------------------------------------------------------------


@pytest.mark.llama
@pytest.mark.timeout(300)
def test_a_real_model_has_a_line_and_a_rate(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer and shorter streams than otherwise: enough for a line."""
    for name, value in (("_LENGTHS", 3), ("_LONGEST", 128), ("_ANSWER", 4)):
        monkeypatch.setattr(measuring, name, value)
    fetch("smollm2-135m-instruct", print)
    code, shown = run("laptop", configuration(here, laptop=LLAMA))
    assert code == OK
    file = ProfileFile.read(here / "laptop.profile.json")
    assert file.engine == "llama.cpp: smollm2-135m-instruct"
    assert isinstance(file.profile, DeviceProfile)
    assert file.profile.prefill_rate > file.profile.decode_rate > 0
    assert file.energy is not None or file.energy_missing
    assert "tokens per second" in shown
