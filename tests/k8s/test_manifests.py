"""Every overlay, alone and with every component, keeps every rule."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from serve_app.cli.configfile import load
from tests.k8s import guard_rules, placement_rules, schemas
from tests.k8s.manifests import COMPONENTS, OVERLAYS, ROOT, Deployed, deployed, needs_kustomize, serve_file
from tests.k8s.mistakes import Rule

pytestmark = needs_kustomize


RULES: tuple[Rule, ...] = (*placement_rules.RULES, *guard_rules.RULES)

#: Without, and with all that can be added at once.
VARIANTS = [(overlay, some) for overlay in OVERLAYS for some in ((), tuple(c for c in COMPONENTS if c != "tracing"))]


@pytest.fixture(params=VARIANTS, ids=lambda variant: "+".join((variant[0], *variant[1])))
def manifests(request: pytest.FixtureRequest) -> Deployed:
    overlay, components = request.param
    return deployed(overlay, *components)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_rule_is_kept(rule: Rule, manifests: Deployed) -> None:
    assert not list(rule(manifests))


def test_kubernetes_knows_every_field(manifests: Deployed) -> None:
    assert not list(schemas.kubernetes_knows_every_field(manifests))


@schemas.needs_kuberay
def test_kuberay_knows_every_field(manifests: Deployed) -> None:
    assert manifests.of("RayService")
    assert not list(schemas.kuberay_knows_every_field(manifests))


def test_every_kind_is_checked_by_something() -> None:
    kinds = {each["kind"] for overlay in OVERLAYS for each in deployed(overlay, *COMPONENTS[:-1]).objects}
    assert {"RayService", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service"} < kinds
    assert kinds > schemas.ELSEWHERE


def test_everything_is_in_one_namespace_that_forbids_privileges(manifests: Deployed) -> None:
    (namespace,) = manifests.of("Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert {each["metadata"]["namespace"] for each in manifests.objects if each is not namespace} == {"disco"}


def test_rays_autoscaler_reads_the_groups_as_the_rules_do(manifests: Deployed) -> None:
    """What it believes of a node that is not there yet decides whether it asks for one."""
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

    cluster = {"metadata": {"name": "disco", "namespace": "disco"}, "spec": manifests.cluster}
    believed = _derive_autoscaling_config_from_ray_cr(cluster)["available_node_types"]
    assert believed["headgroup"]["resources"]["CPU"] == 0
    for group in manifests.cluster["workerGroupSpecs"]:
        node = believed[group["groupName"]]
        resources = (node["resources"]["CPU"], node["resources"].get("GPU", 0))
        assert node["labels"] == group["labels"]
        assert resources == (placement_rules.ray_cpus(group), placement_rules.ray_gpus(group))
        assert (node["min_workers"], node["max_workers"]) == (group["minReplicas"], group["maxReplicas"])


def test_ray_reads_every_variable_of_the_environment() -> None:
    """A misspelt one is ignored without a word."""
    package = Path(importlib.util.find_spec("ray").origin).parent  # type: ignore[union-attr,arg-type]
    switches = "".join(
        (package / file).read_text("utf-8")
        for file in (
            "serve/_private/constants.py",
            "_private/ray_constants.py",
            "_common/usage/usage_constants.py",
        )
    )
    settings = (package / "core/src/ray/gcs/gcs_server").read_bytes()
    for name in deployed("gpu-cloud").environment:
        inner = name.removeprefix("RAY_")
        known = f'"{name}"' in switches if inner.isupper() else inner.encode() in settings
        assert known, f"Ray knows no {name}"


# --- one source of truth ----------------------------------------------------------------------------------------


def test_the_gpu_overlay_serves_the_shipped_configuration_to_the_letter() -> None:
    shipped = (ROOT / "configs/k8s.yaml").read_text("utf-8")
    assert deployed("gpu-cloud").service["serveConfigV2"] == shipped
    assert serve_file("gpu-cloud").read_text("utf-8") == shipped


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_serves_its_own_file_to_the_letter(overlay: str) -> None:
    assert deployed(overlay).service["serveConfigV2"] == serve_file(overlay).read_text("utf-8")
    assert load(str(serve_file(overlay)), runs_here=False).app.access.keyed


#: Where the other overlays may differ from the shipped configuration; below these paths, and nowhere else.
ARGS, USER = "applications.0.args", "applications.0.deployments.0.user_config"
OWN = {
    "cpu-only": {f"{ARGS}.endpoints.cloud", f"{ARGS}.endpoints.device.engine.threads",
                 f"{ARGS}.endpoints.device.placement", f"{USER}.prices.endpoints.cloud.source"},
    "remote-cloud": {f"{ARGS}.endpoints.cloud", f"{USER}.prices.notional", f"{USER}.prices.endpoints.cloud"},
}  # fmt: skip


@pytest.mark.parametrize("overlay", OWN)
def test_the_other_overlays_differ_where_they_mean_to(overlay: str) -> None:
    shipped = dict(leaves(yaml.safe_load((ROOT / "configs/k8s.yaml").read_text("utf-8"))))
    own = dict(leaves(yaml.safe_load(serve_file(overlay).read_text("utf-8"))))
    different = {path for path in shipped.keys() | own.keys() if shipped.get(path) != own.get(path)}
    meant = {path for path in different if any(path == top or path.startswith(f"{top}.") for top in OWN[overlay])}
    assert different == meant
    assert all(any(path.startswith(top) for path in different) for top in OWN[overlay])


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in parts:
            yield from leaves(part, f"{path}.{key}".lstrip("."))
    else:
        yield path, value
