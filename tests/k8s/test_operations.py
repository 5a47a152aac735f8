"""What docs/operations.md and docs/kubernetes.md say is what the manifests and the arithmetic say."""

from __future__ import annotations

import re

import pytest

from tests.k8s.guard_rules import OPEN
from tests.k8s.manifests import COMPONENTS, OVERLAYS, ROOT, deployed, needs_kustomize

OPERATIONS = (ROOT / "docs/operations.md").read_text("utf-8")
KUBERNETES = (ROOT / "docs/kubernetes.md").read_text("utf-8")

#: | words | `symbol` | value | source |
INPUT = re.compile(r"^\| [^|]*\| `(\w+)` \| ([0-9.]+) \| [^|]+ \|$", re.MULTILINE)
#: | words | `symbol = expression` | value |
RESULT = re.compile(r"^\| [^|]*\| `(\w+) = ([\w\s.+*/()-]+)` \| ([0-9.]+) \|$", re.MULTILINE)


def section(text: str, heading: str) -> str:
    return text.partition(f"## {heading}\n")[2].partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """Cells of all tables, without heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("heading", ["A million readers", "What it costs"])
def test_every_value_is_what_its_formula_says(heading: str) -> None:
    text = section(OPERATIONS, heading)
    values = {name: float(value) for name, value in INPUT.findall(text)}
    results = RESULT.findall(text)
    assert len(values) >= 10
    assert len(results) >= 6
    for name, formula, value in results:
        values[name] = eval(formula, {"__builtins__": {}}, dict(values))
        assert values[name] == pytest.approx(float(value), rel=1e-3), f"{name} = {formula} is {values[name]:.6g}"


@needs_kustomize
def test_the_times_of_an_upgrade_are_those_of_the_manifests() -> None:
    manifests = deployed("gpu-cloud")
    said = {row[0]: row[1] for row in rows(section(OPERATIONS, "Upgrade and rollback"))}
    settings = manifests.configuration
    assert float(said["limits.stream_seconds"]) == settings.live.limits.stream_seconds
    assert float(said["drain_seconds"]) == settings.app.drain_seconds
    for name in ("RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"):
        assert said[name] == manifests.environment[name]
    assert {int(said["terminationGracePeriodSeconds"])} == {
        pod.spec["terminationGracePeriodSeconds"] for pod in manifests.ray_pods()
    }
    assert int(said["rayClusterDeletionDelaySeconds"]) == manifests.service["rayClusterDeletionDelaySeconds"]


@needs_kustomize
def test_the_secrets_to_make_are_those_that_are_asked_for() -> None:
    said = {row[0] for row in rows(section(KUBERNETES, "Start")) if row[0].startswith("disco-")}
    asked: set[str] = set()
    for overlay in OVERLAYS:
        text = str(deployed(overlay, *(name for name in COMPONENTS if name != "tracing")).objects)
        asked |= set(re.findall(r"'secretName': '([^']+)'", text))
        asked |= set(re.findall(r"'secretKeyRef': {'key': '[^']+', 'name': '([^']+)'}", text))
        asked |= set(
            re.findall(r"'(?:credentials|certificateRefs)': \[?{(?:'key': '[^']+', )?'name': '([^']+)'}", text)
        )
    assert said == asked


@needs_kustomize
def test_the_ports_that_are_open_and_the_parts_that_there_are_are_listed() -> None:
    network = section(KUBERNETES, "Network")
    for ports in OPEN.values():
        assert any(ports == set(map(int, re.findall(r"\b\d{4}\b", row[2]))) for row in rows(network)), ports
    parts = {name.strip("` ") for row in rows(section(KUBERNETES, "What there is")) for name in row[0].split(",")}
    assert {*OVERLAYS, *COMPONENTS} <= parts
