"""The cluster's configuration with simulated engines in place of real ones, derived so that the two cannot drift."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

from serve_app.cli.configfile import load
from serve_app.engine_settings import ShapedEngineSettings, SimulatedEngineSettings

#: Of the API; known to whoever reads this, and used for services that live as long as one test.
KEY: Final = "key-of-the-cluster-test"

#: Writes the text at once; the profile around it makes the timing.
WRITER: Final = SimulatedEngineSettings(
    seed=7, overhead=0.0, prefill_rate=1e5, decode_rate=1e3, context_length=2048, output_tokens=(60, 200)
)

#: Measured timings in place of the engines of the configuration.
PROFILES: Final = {"vllm": "openai-gpt-4-1106-preview", "llama_cpp": "s23-gemma3-1b-q4"}


def twin(name: str = "k8s") -> dict[str, Any]:
    """The configuration file of that name, changed where machines without GPU, model, collector and secrets need it.

    Raises KeyError for an engine without a twin.
    """
    document = copy.deepcopy(dict(load(name, runs_here=False).document))
    arguments = application(document)["args"]
    for seed, endpoint in enumerate(arguments["endpoints"].values(), start=1):
        engine = ShapedEngineSettings(profile=PROFILES[endpoint["engine"]["type"]], seed=seed, engine=WRITER)
        endpoint["engine"] = engine.model_dump(mode="json")
    arguments["access"] = {"keys": {"client": {"sha256": sha256(KEY.encode()).hexdigest()}}}
    arguments.pop("telemetry", None)
    return document


def application(document: Mapping[str, Any]) -> dict[str, Any]:
    (found,) = document["applications"]
    return dict(found)


def live(document: Mapping[str, Any]) -> dict[str, Any]:
    """The router's ``user_config``, to be changed in place."""
    (router,) = application(document)["deployments"]
    settings: dict[str, Any] = router["user_config"]
    return settings
