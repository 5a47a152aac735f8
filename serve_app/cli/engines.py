"""What the configured engines need from this machine: models, profiles, recordings, threads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from actors.engines.gguf import beyond_training, trained_context
from actors.engines.models import KNOWN, resolve
from actors.engines.profiles import load_profile
from serve_app.settings import (
    AppSettings,
    EngineSettings,
    LlamaCppEngineSettings,
    ReplayEngineSettings,
    ShapedEngineSettings,
)


@dataclass(frozen=True, slots=True)
class MissingModel:
    """A known model that is not in the cache yet; ``megabytes`` to download."""

    name: str
    megabytes: int


def bare(engine: EngineSettings) -> EngineSettings:
    """The engine that computes, without the imitation around it."""
    return engine.engine if isinstance(engine, ShapedEngineSettings) else engine


def engine_problems(app: AppSettings) -> list[str]:
    """What cannot be mended by a download."""
    problems = []
    for name, endpoint in app.endpoints.items():
        path = f"applications.0.args.endpoints.{name}."
        inner = path
        if isinstance(endpoint.engine, ShapedEngineSettings):
            inner = f"{path}engine."
            try:
                load_profile(endpoint.engine.profile)
            except ValueError as error:
                problems.append(f"{path}{error}")
        engine = bare(endpoint.engine)
        if isinstance(engine, LlamaCppEngineSettings):
            problems += [f"{inner}{problem}" for problem in _model_problems(engine)]
        if isinstance(engine, ReplayEngineSettings) and not Path(engine.path).expanduser().is_file():
            problems.append(f"{inner}engine.path: there is no such file; give the path of a JSONL recording")
    return problems


def _model_problems(engine: LlamaCppEngineSettings) -> list[str]:
    """A known model that is not in the cache is no problem: it is fetched."""
    try:
        trained = trained_context(resolve(engine.model))
    except FileNotFoundError as error:
        return [] if engine.model in KNOWN else [str(error)]
    except ValueError as error:
        return [str(error)]
    problem = None if trained is None else beyond_training(engine.context_length, trained)
    return [] if problem is None else [problem]


def missing_models(app: AppSettings) -> tuple[MissingModel, ...]:
    """Known models that `disco up` has to fetch first, each once."""
    found = {}
    for endpoint in app.endpoints.values():
        engine = bare(endpoint.engine)
        if isinstance(engine, LlamaCppEngineSettings) and engine.model in KNOWN:
            try:
                resolve(engine.model)
            except FileNotFoundError:
                found[engine.model] = MissingModel(engine.model, KNOWN[engine.model].megabytes)
    return tuple(found.values())


def needs_llama(app: AppSettings) -> bool:
    return any(isinstance(bare(endpoint.engine), LlamaCppEngineSettings) for endpoint in app.endpoints.values())


def describe_engine(engine: EngineSettings) -> str:
    inner = bare(engine)
    match inner:
        case LlamaCppEngineSettings():
            return f"llama.cpp: {inner.model}"
        case ReplayEngineSettings():
            return f"replay of {inner.path}"
        case _:
            return "simulated: no model"
