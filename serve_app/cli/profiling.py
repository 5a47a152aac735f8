"""`disco profile`: start an endpoint's engine in this process, measure it, write a profile that `prior:` can name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from actors.engines.base import Engine, TellsProgress
from actors.engines.factory import make_engine
from actors.engines.profile_file import MeasuredEnergy, ProfileFile
from actors.threads import available_cores, threads_per_engine
from serve_app.cli.check import TYPICAL_PROMPT, complain
from serve_app.cli.configfile import BadConfiguration, Configuration, load
from serve_app.cli.energy_meter import EnergyMeter, NoEnergyCounters
from serve_app.cli.engines import bare, describe_engine, missing_packages
from serve_app.cli.exits import BAD_INPUT, FAILED, INTERRUPTED, OK, UNFIT, UNREACHABLE
from serve_app.cli.measure import STREAMS, Measured, NotMeasurable, measure
from serve_app.cli.outputs import require_file
from serve_app.core.errors import DiscoError, EndpointUnavailable
from serve_app.engine_settings import (
    EngineSettings,
    LlamaCppEngineSettings,
    OpenAIHttpEngineSettings,
    ShapedEngineSettings,
    VllmEngineSettings,
)
from serve_app.settings import EndpointSettings
from serve_app.sim.tables import BadInput

#: Seconds between two looks at an engine that starts, and how long a server may keep one waiting after that.
_POLL: Final = 0.25
_SERVER_LIMIT: Final = 30.0

#: Scatter, as a share of a typical TTFT, from which on something else must have been going on.
_STEADY: Final = 0.25


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    endpoint: str
    config: str
    output: Path | None
    as_json: bool


class _Refused(Exception):
    """``code``: the exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def profile(options: ProfileOptions, console: Console) -> int:
    """Print what was measured; the exit code."""
    try:
        configuration = load(options.config)
        path = options.output or Path(f"{options.endpoint}.profile.json")
        endpoint = _endpoint(configuration, options.endpoint)
        _check_output(path)
        meter, missing = _meter(endpoint)
        measured = _run(configuration, endpoint, meter)
        file = _file(options.endpoint, endpoint.engine, measured, meter, missing)
        _write(file, path)
    except BadConfiguration as error:
        complain(error)
        return BAD_INPUT
    except _Refused as refused:
        _complain(str(refused))
        return refused.code
    except KeyboardInterrupt:
        return INTERRUPTED
    if options.as_json:
        console.print_json(file.model_dump_json())
    else:
        console.print(_view(file, path, endpoint.engine))
    return OK


def _endpoint(configuration: Configuration, name: str) -> EndpointSettings:
    endpoints = configuration.app.endpoints
    if name not in endpoints:
        raise _Refused(
            f"{configuration.source} has no endpoint named {name!r}; known: {', '.join(endpoints)}", BAD_INPUT
        )
    only = configuration.app.model_copy(update={"endpoints": {name: endpoints[name]}})
    for package in missing_packages(only):
        raise _Refused(f"the {package.engine} engine needs {package.name}: {package.remedy}", UNFIT)
    return endpoints[name]


def _check_output(path: Path) -> None:
    """Before anything is measured. An earlier profile is replaced, nothing else is."""
    if path.suffix != ".json":
        raise _Refused(f"--output: {path} must end in .json, or no configuration can name it", BAD_INPUT)
    if path.exists():
        try:
            ProfileFile.read(path)
        except ValueError:
            raise _Refused(f"--output: {path} is there and is no profile; give another path", BAD_INPUT) from None
    try:
        require_file("--output", path)
    except BadInput as error:
        raise _Refused(str(error), BAD_INPUT) from None


def _meter(endpoint: EndpointSettings) -> tuple[EnergyMeter | None, str]:
    """The energy counters of what computes here, or why there are none."""
    engine = bare(endpoint.engine)
    if isinstance(engine, OpenAIHttpEngineSettings):
        return None, "what a server takes is not seen from here"
    if not isinstance(engine, LlamaCppEngineSettings | VllmEngineSettings):
        return None, "nothing computes here"
    if endpoint.placement.num_gpus:
        return None, "the processor's counters do not see GPUs"
    try:
        return EnergyMeter.find(), ""
    except NoEnergyCounters as error:
        return None, str(error)


# --- measuring ------------------------------------------------------------------------------------------------------


def _run(configuration: Configuration, endpoint: EndpointSettings, meter: EnergyMeter | None) -> Measured:
    threads = threads_per_engine(configuration.app.endpoints.values(), available_cores())
    engine = make_engine(endpoint.engine, endpoint.slots, threads)
    what = describe_engine(endpoint.engine)
    remote = isinstance(bare(endpoint.engine), OpenAIHttpEngineSettings)
    try:
        with _progress(what) as bar:
            return asyncio.run(_measure(engine, meter, bar))
    except EndpointUnavailable as error:
        raise _Refused(f"{what}: {error.message}", UNREACHABLE if remote else FAILED) from None
    except DiscoError as error:
        raise _Refused(f"{what}: {error.message}", FAILED) from None
    except NotMeasurable as error:
        raise _Refused(f"{what}: {error}", FAILED) from None


async def _measure(engine: Engine, meter: EnergyMeter | None, bar: _Bar) -> Measured:
    try:
        await _started(engine, bar.say)
        bar.say("measuring")
        return await measure(engine, meter, bar.step)
    finally:
        await engine.close()


async def _started(engine: Engine, say: Callable[[str], None]) -> None:
    """Return once the engine knows itself. Raises ``EndpointUnavailable``."""
    clock = asyncio.get_running_loop().time
    starting = asyncio.create_task(engine.start())
    try:
        while not starting.done():
            await asyncio.wait({starting}, timeout=_POLL)
            if isinstance(engine, TellsProgress):
                say(engine.progress)
    finally:
        starting.cancel()
        await asyncio.wait({starting})
    starting.result()
    limit = clock() + _SERVER_LIMIT
    while True:
        try:
            _ = engine.info
        except EndpointUnavailable as error:
            if clock() > limit:
                raise
            say(error.message)
            await asyncio.sleep(_POLL)
        else:
            return


class _Bar:
    def __init__(self, progress: Progress, what: str) -> None:
        self._progress = progress
        self._what = what
        self._task = progress.add_task(escape(f"{what}: starting"), total=STREAMS)

    def say(self, state: str) -> None:
        self._progress.update(self._task, description=escape(f"{self._what}: {state}"))

    def step(self) -> None:
        self._progress.advance(self._task)


@contextmanager
def _progress(what: str) -> Iterator[_Bar]:
    """On stderr while it is a terminal."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    stderr = Console(stderr=True)
    with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as progress:
        yield _Bar(progress, what)


# --- the profile ----------------------------------------------------------------------------------------------------


def _file(
    name: str, engine: EngineSettings, measured: Measured, meter: EnergyMeter | None, missing: str
) -> ProfileFile:
    energy = None
    if meter is not None and measured.prefill_joules is not None and measured.decode_joules is not None:
        energy = MeasuredEnergy(
            prefill_joules_per_token=measured.prefill_joules,
            decode_joules_per_token=measured.decode_joules,
            source=meter.source,
        )
    return ProfileFile(
        name=name,
        engine=describe_engine(engine),
        date=_today(),
        samples=measured.samples,
        intercept=measured.line.intercept,
        prefill_rate=measured.profile.prefill_rate,
        decode_rate=measured.profile.decode_rate,
        scatter=measured.scatter,
        energy=energy,
        energy_missing=missing,
    )


def _today() -> date:
    return datetime.now(UTC).date()


def _write(file: ProfileFile, path: Path) -> None:
    try:
        file.write(path)
    except OSError as error:
        raise _Refused(f"--output: {path} cannot be written ({error.strerror}); give another path", BAD_INPUT) from None


def _view(file: ProfileFile, path: Path, engine: EngineSettings) -> RenderableType:
    facts = [
        ("measured", f"{file.name}, {file.engine}: {file.samples} streams"),
        ("first token", f"{file.intercept:.3g} s + {1e3 / file.prefill_rate:.3g} ms per prompt token"),
        ("", f"within {file.scatter:.2g} s of that in half of the streams"),
        ("prefill", f"{file.prefill_rate:.4g} tokens per second"),
        ("decode", f"{file.decode_rate:.4g} tokens per second"),
    ]
    if file.scatter > _STEADY * file.profile.ttft(TYPICAL_PROMPT):
        facts.append(("", "this varies a lot; measure again when the machine has nothing else to do"))
    if isinstance(engine, ShapedEngineSettings):
        facts.insert(1, ("", f"the timing is that of {engine.profile}, which it imitates"))
    if file.energy is None:
        facts.append(("energy", f"not measured: {file.energy_missing}"))
    else:
        prefill, decode = file.energy.prefill_joules_per_token, file.energy.decode_joules_per_token
        source = f"disco profile, {file.date}, {file.energy.source}"
        facts += [
            ("energy", f"{prefill:.3g} J per prompt token, {decode:.3g} J per decoded one, above rest ({source})"),
            ("in prices", f"prefill_joules_per_token: {prefill:.3g}, decode_joules_per_token: {decode:.3g}"),
        ]
    facts += [("written to", str(path)), ("to use it", f"prior: {path.resolve()}    in the settings of this engine")]
    grid = Table.grid(padding=(0, 2))
    grid.add_column(min_width=11, no_wrap=True)
    grid.add_column(overflow="fold")
    for name, fact in facts:
        grid.add_row(Text(name), Text(fact))
    return grid


def _complain(message: str) -> None:
    Console(stderr=True).print(escape(message), style="red", highlight=False, soft_wrap=True)
