"""The cluster tests run what configs/k8s.yaml says, but for what their machine cannot have."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.hosts import twin as module
from benchmarks.hosts.cluster import NODES
from benchmarks.hosts.twin import application, live, twin
from serve_app.cli.configfile import load
from serve_app.settings import AppSettings, LiveSettings

CHANGED = {"engine", "access", "telemetry"}


def without(tree: Any, names: set[str]) -> Any:
    if isinstance(tree, dict):
        return {name: without(value, names) for name, value in tree.items() if name not in names}
    return [without(value, names) for value in tree] if isinstance(tree, list) else tree


def test_nothing_else_differs() -> None:
    original = load("k8s", runs_here=False).document
    assert without(twin(), CHANGED) == without(original, CHANGED)
    assert twin() != original


def test_it_is_a_sound_configuration_with_a_key() -> None:
    document = twin()
    app = AppSettings.model_validate(application(document)["args"])
    LiveSettings.model_validate(live(document)).check_against(app)
    assert app.access.keyed
    assert app.telemetry.otlp_endpoint is None


def test_an_engine_without_a_twin_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROFILES", {"vllm": "openai-gpt-4-1106-preview"})
    with pytest.raises(KeyError, match="llama_cpp"):
        twin()


def test_every_deployment_has_hosts_with_its_labels_and_resources() -> None:
    app = AppSettings.model_validate(application(twin())["args"])
    wanted = [(e.placement.label_selector, e.placement.num_cpus, e.placement.replicas) for e in app.endpoints.values()]
    wanted.append((app.router.label_selector, app.router.num_cpus, app.router.replicas))
    for labels, cpus, replicas in wanted:
        fitting = [node for node in NODES if labels.items() <= dict(node.labels).items() and node.cpus >= cpus]
        assert len(fitting) == replicas, labels
