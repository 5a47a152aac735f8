"""The manifests as kubectl would apply them, and what the rules ask about them."""

from __future__ import annotations

import copy
import functools
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from serve_app.cli.configfile import Configuration, load

ROOT = Path(__file__).parents[2]
OVERLAYS = ("gpu-cloud", "cpu-only", "remote-cloud")
COMPONENTS = tuple(sorted(path.parent.name for path in (ROOT / "k8s/components").glob("*/kustomization.yaml")))

needs_kustomize = pytest.mark.skipif(
    not (shutil.which("kustomize") or shutil.which("kubectl")),
    reason="neither kustomize nor kubectl is installed, and one of them has to render the manifests",
)

Object = dict[str, Any]


@functools.cache
def rendered(overlay: str, *components: str) -> tuple[Object, ...]:
    """An overlay with some components, as objects. Not to be changed: ``deployed`` makes copies."""
    command = ["kustomize", "build"] if shutil.which("kustomize") else ["kubectl", "kustomize"]
    folder = ROOT / "k8s/overlays" / overlay
    with tempfile.TemporaryDirectory() as scratch:
        if components:
            # kustomize wants relative paths.
            up = "../" * len(Path(scratch).resolve().parents)
            parts = {
                "resources": [f"{up}{folder}".replace("//", "/")],
                "components": [f"{up}{ROOT}/k8s/components/{name}".replace("//", "/") for name in components],
                "namespace": "disco",
            }
            Path(scratch, "kustomization.yaml").write_text(yaml.safe_dump(parts), "utf-8")
            folder = Path(scratch)
        done = subprocess.run([*command, str(folder)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


def serve_file(overlay: str) -> Path:
    return ROOT / "k8s/overlays" / overlay / "serve.yaml"


@dataclass
class Pod:
    """A pod template: of the Ray cluster, whose ``group`` it is then, or of a Deployment or StatefulSet."""

    name: str
    labels: Mapping[str, str]
    spec: Object
    group: Object | None = None

    @property
    def containers(self) -> list[Object]:
        return [*self.spec.get("initContainers", ()), *self.spec["containers"]]

    @property
    def main(self) -> Object:
        container: Object = self.spec["containers"][0]
        return container

    def port(self, name_or_number: str | int) -> int | None:
        """What a Service's targetPort, a policy's or a probe's port comes to here."""
        for container in self.spec["containers"]:
            for port in container.get("ports", ()):
                if name_or_number in (port.get("name"), port["containerPort"]):
                    return int(port["containerPort"])
        return None

    def mount(self, path: str) -> Object | None:
        """The volume behind a file of the main container."""
        for mount in self.main.get("volumeMounts", ()):
            if Path(path).is_relative_to(mount["mountPath"]):
                (volume,) = (v for v in self.spec["volumes"] if v["name"] == mount["name"])
                found: Object = volume
                return found
        return None


class Deployed:
    """Objects that can be changed, and the Serve configuration inside them."""

    def __init__(self, objects: tuple[Object, ...]) -> None:
        self.objects = [copy.deepcopy(each) for each in objects]

    def of(self, kind: str) -> list[Object]:
        return [each for each in self.objects if each["kind"] == kind]

    def named(self, kind: str, name: str) -> Object:
        (found,) = (each for each in self.of(kind) if each["metadata"]["name"] == name)
        return found

    @property
    def service(self) -> Object:
        spec: Object = self.named("RayService", "disco")["spec"]
        return spec

    @property
    def cluster(self) -> Object:
        cluster: Object = self.service["rayClusterConfig"]
        return cluster

    @property
    def head(self) -> Object:
        head: Object = self.cluster["headGroupSpec"]
        return head

    def group(self, name: str) -> Object:
        (found,) = (each for each in self.cluster["workerGroupSpecs"] if each["groupName"] == name)
        return found

    def ray_pods(self) -> list[Pod]:
        """Head first. With the labels that KubeRay adds, as far as anything here selects by them."""
        head = {"ray.io/node-type": "head", "ray.io/group": "headgroup"}
        pods = [_pod("head", self.head, head)]
        for group in self.cluster["workerGroupSpecs"]:
            name = group["groupName"]
            pods.append(_pod(name, group, {"ray.io/node-type": "worker", "ray.io/group": name}))
        return pods

    def pods(self) -> list[Pod]:
        others = []
        for each in (*self.of("Deployment"), *self.of("StatefulSet")):
            template = each["spec"]["template"]
            others.append(Pod(each["metadata"]["name"], template["metadata"]["labels"], template["spec"]))
        return [*self.ray_pods(), *others]

    def selected(self, selector: Mapping[str, Any] | None) -> list[Pod]:
        """By a selector of labels, with or without ``matchLabels`` around it."""
        labels = (selector or {}).get("matchLabels", selector or {})
        return [pod for pod in self.pods() if all(pod.labels.get(key) == value for key, value in labels.items())]

    @property
    def environment(self) -> Mapping[str, str]:
        """What every Ray process starts with."""
        (found,) = (each for each in self.of("ConfigMap") if each["metadata"]["name"].startswith("ray-environment"))
        data: Mapping[str, str] = found["data"]
        return data

    @property
    def configuration(self) -> Configuration:
        return _judged(self.service["serveConfigV2"])

    def serve_config(self, change: Callable[[Object], object]) -> None:
        """Change the configuration inside the RayService."""
        document = yaml.safe_load(self.service["serveConfigV2"])
        change(document)
        self.service["serveConfigV2"] = yaml.safe_dump(document)

    def images(self) -> Iterator[tuple[str, str]]:
        for pod in self.pods():
            for container in pod.containers:
                yield f"{pod.name}/{container['name']}", container["image"]


@functools.cache
def _judged(text: str) -> Configuration:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        return load(file.name, runs_here=False)


def _pod(name: str, group: Object, labels: Mapping[str, str]) -> Pod:
    template = group["template"]
    always = {"ray.io/is-ray-node": "yes"}
    return Pod(name, {**template["metadata"]["labels"], **always, **labels}, template["spec"], group)


def quantity(value: str | int) -> float:
    """Kubernetes' cores or bytes."""
    number, unit = re.fullmatch(r"([0-9.]+)(m|Ki|Mi|Gi)?", str(value)).groups()  # type: ignore[union-attr]
    return float(number) * {"m": 1e-3, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, None: 1.0}[unit]


def deployed(overlay: str, *components: str) -> Deployed:
    return Deployed(rendered(overlay, *components))
