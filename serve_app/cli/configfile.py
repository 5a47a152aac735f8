"""A configuration file, read and judged as a whole before Ray starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from serve_app.auth import is_loopback
from serve_app.cli.engines import engine_problems
from serve_app.core.model import EndpointKind
from serve_app.keys import BadKeys, configured_keys, keys_file_is_elsewhere
from serve_app.settings import AppSettings, LiveSettings
from serve_app.strict_yaml import NotYaml, read_yaml
from serve_app.wording import explain

IMPORT_PATH: Final = "serve_app.app:build_app"
ROUTER: Final = "DiscoRouter"
DEFAULT: Final = "disco"


class BadConfiguration(Exception):
    """``problems``: one line each, with the field's path and the remedy."""

    def __init__(self, source: str, problems: tuple[str, ...]) -> None:
        super().__init__(source, problems)
        self.source = source
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Configuration:
    """``document`` is the whole file, as Serve's own schema takes it."""

    source: str
    document: Mapping[str, Any]
    app: AppSettings
    live: LiveSettings
    host: str
    port: int


def shipped() -> tuple[str, ...]:
    """Names of the configurations that come with the package."""
    found = (entry.name for entry in files("configs").iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in found if name.endswith(".yaml")))


def load(name: str, port: int | None = None, *, runs_here: bool = True) -> Configuration:
    """``name``: a file's path, or a shipped configuration's name. ``port`` replaces the file's.

    Unless it ``runs_here``, a keys_file that only the routers' machines have is no problem.
    Raises ``BadConfiguration`` with every problem that was found.
    """
    text = _read(name)
    try:
        document = read_yaml(text)
    except NotYaml as error:
        raise BadConfiguration(name, (str(error),)) from None
    if not isinstance(document, dict):
        raise BadConfiguration(name, ("the file must be a mapping with `applications:`, as `serve run` takes it",))
    if port is not None and isinstance(document.get("http_options", {}), dict):
        document["http_options"] = {**(document.get("http_options") or {}), "port": port}
    problems = _frame_problems(document)
    applications = document.get("applications")
    if not isinstance(applications, list) or len(applications) != 1 or not isinstance(applications[0], dict):
        problems.append("applications: must be a list with exactly one application")
        raise BadConfiguration(name, tuple(problems))
    problems += _application_problems(applications[0], document)
    return _settings(name, document, problems, runs_here)


def _read(name: str) -> str:
    known = shipped()
    if name in known and not Path(name).is_file():
        return files("configs").joinpath(f"{name}.yaml").read_text("utf-8")
    try:
        return Path(name).expanduser().read_text("utf-8")
    except (OSError, RuntimeError) as error:
        # RuntimeError: "~somebody", who has no home here.
        what = getattr(error, "strerror", "there is no such home directory")
        reason = f"{what}; give a file's path, or the name of a shipped configuration: {', '.join(known)}"
        raise BadConfiguration(name, (reason,)) from None
    except UnicodeDecodeError:
        raise BadConfiguration(name, ("the file is not UTF-8 text",)) from None


def _settings(name: str, document: dict[str, Any], problems: list[str], runs_here: bool) -> Configuration:
    """The settings inside the frame; ``problems`` are those of the frame."""
    application = document["applications"][0]
    app = _validate(AppSettings, application.get("args") or {}, "applications.0.args", problems)
    live = LiveSettings()
    for rank, deployment in _deployments(application):
        path = f"applications.0.deployments.{rank}"
        if deployment.get("name") == ROUTER:
            validated = _validate(LiveSettings, deployment.get("user_config") or {}, f"{path}.user_config", problems)
            live = validated or live
        elif deployment.get("user_config") is not None:
            problems.append(f"{path}.user_config: only {ROUTER} takes a user_config; remove it")
    http = document.get("http_options")
    host = http.get("host") if isinstance(http, dict) and isinstance(http.get("host"), str) else None
    if app is not None:
        problems += _tracing_problems(app, document)
        problems += _cross_problems(app, live, application)
        if runs_here or not keys_file_is_elsewhere(app):
            problems += _access_problems(app, host)
        problems += engine_problems(app)
    if app is None or host is None or problems:
        raise BadConfiguration(name, tuple(problems))
    return Configuration(name, document, app, live, host, document["http_options"].get("port", 8000))


def _tracing_problems(app: AppSettings, document: dict[str, Any]) -> list[str]:
    """A process has one tracer. The replicas would refuse, too, but only once they start."""
    serves = document.get("tracing_config")
    if app.telemetry.otlp_endpoint is None or not isinstance(serves, dict) or not serves.get("enabled"):
        return []
    return [
        "tracing_config.enabled: Serve's tracing and applications.0.args.telemetry.otlp_endpoint are both on; "
        "remove one of them"
    ]


def _deployments(application: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    deployments = application.get("deployments")
    if not isinstance(deployments, list):
        return []
    return [(rank, deployment) for rank, deployment in enumerate(deployments) if isinstance(deployment, dict)]


def _cross_problems(app: AppSettings, live: LiveSettings, application: dict[str, Any]) -> list[str]:
    """What no single field can be blamed for."""
    problems = []
    try:
        live.check_against(app)
    except ValueError as error:
        problems.append(f"{ROUTER}.user_config.{error}")
    names = (ROUTER, *(f"endpoint-{endpoint}" for endpoint in app.endpoints))
    for rank, deployment in _deployments(application):
        if deployment.get("name") not in names:
            problems.append(
                f"applications.0.deployments.{rank}.name: no deployment of that name; known: {', '.join(names)}"
            )
    for policy, kind in (("cloud-only", EndpointKind.CLOUD), ("device-only", EndpointKind.DEVICE)):
        if live.policy.name == policy and all(endpoint.kind is not kind for endpoint in app.endpoints.values()):
            problems.append(
                f"{ROUTER}.user_config.policy.name: {policy}, but no endpoint is of kind {kind.value}; "
                "add one or use disco"
            )
    return problems


def _access_problems(app: AppSettings, host: str | None) -> list[str]:
    """Keys that cannot be used, and a door to the network that asks for none."""
    try:
        keys = configured_keys(app)
    except BadKeys as error:
        return [f"applications.0.args.{problem}" for problem in error.problems]
    if keys or host is None or is_loopback(host) or app.access.open:
        return []
    return [
        f"http_options.host: {host or 'an empty host'} is reachable from the network and nothing asks for a key; use "
        "127.0.0.1, or add access.keys to applications.0.args (`disco key new NAME` makes one), or say "
        "`access: {open: true}` there if anyone may use it"
    ]


def _validate(
    model: type[Any], value: Any, path: str, problems: list[str]
) -> Any:  # the model's instance, or None after adding to ``problems``
    try:
        return model.model_validate(value)
    except ValidationError as error:
        if not isinstance(value, dict):
            if not any(known.startswith(f"{path}:") for known in problems):
                problems.append(f"{path}: must be a mapping")
        else:
            problems.extend(f"{path}.{line}" for line in explain(error, value))
        return None


def _frame_problems(document: dict[str, Any]) -> list[str]:
    """The part that Ray Serve reads. Its own schema ignores unknown keys here without a word."""
    from ray.serve.schema import HTTPOptionsSchema, ServeDeploySchema

    problems = _unknown(document, ServeDeploySchema, "")
    http = document.get("http_options")
    if isinstance(http, dict):
        problems += _unknown(http, HTTPOptionsSchema, "http_options.")
        port = http.get("port", 8000)
        # Serve's schema refuses the rest.
        looks_like_one = isinstance(port, int | float) or (isinstance(port, str) and port.strip().isdigit())
        if looks_like_one and (type(port) is not int or not 1 <= port <= 65535):
            problems.append("http_options.port: must be a whole number from 1 to 65535, without quotes")
        if http.get("root_path", "") not in ("", "/"):
            problems.append("http_options.root_path: OpenAI's clients expect /v1; leave it out")
        if http.get("host") is not None:
            return problems
    remedy = "set it, or Ray listens on every interface; 127.0.0.1 serves this machine only"
    return [*problems, f"http_options.host: {remedy}"]


def _application_problems(application: dict[str, Any], document: dict[str, Any]) -> list[str]:
    from ray.serve.schema import ServeApplicationSchema, ServeDeploySchema

    problems = _unknown(application, ServeApplicationSchema, "applications.0.")
    if application.get("import_path") != IMPORT_PATH:
        problems.append(f"applications.0.import_path: must be {IMPORT_PATH}")
    if application.get("route_prefix", "/") != "/":
        problems.append("applications.0.route_prefix: must be /, where OpenAI's clients expect /v1")
    problems += _deployment_problems(application.get("deployments", []))
    if not problems:
        try:
            ServeDeploySchema.model_validate(document)
        except ValidationError as error:
            return explain(error, document)
    return problems


def _deployment_problems(deployments: Any) -> list[str]:
    from ray.serve.schema import DeploymentSchema

    if not isinstance(deployments, list):
        return ["applications.0.deployments: must be a list"]
    problems: list[str] = []
    seen = set()
    for rank, deployment in enumerate(deployments):
        path = f"applications.0.deployments.{rank}"
        if not isinstance(deployment, dict):
            problems.append(f"{path}: must be a mapping with `name:`")
            continue
        problems += _unknown(deployment, DeploymentSchema, f"{path}.")
        name = str(deployment.get("name"))
        if name in seen:
            problems.append(f"{path}.name: {name} appears twice; put all of its settings in one place")
        seen.add(name)
        if name == ROUTER:
            replicas = [key for key in ("num_replicas", "autoscaling_config") if key in deployment]
            problems += [f"{path}.{key}: say it in args, as router.replicas" for key in replicas]
    return problems


def _unknown(value: dict[str, Any], model: type[BaseModel], path: str) -> list[str]:
    return [
        f"{path}{key}: unknown key; check the spelling or remove it" for key in value if key not in model.model_fields
    ]
