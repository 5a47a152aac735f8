"""The schemas of Kubernetes and of KubeRay, as rules."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from tests.k8s.manifests import ROOT, Deployed

#: The oldest Kubernetes that the manifests are for, and the newest they were checked against.
KUBERNETES = ("1.31", "1.35")

#: Kinds that neither schema knows; the rules look at what matters of them.
ELSEWHERE = {"Gateway", "HTTPRoute", "PodMonitor"}

KUBERAY = ROOT.parent / "shared/kuberay"

needs_kuberay = pytest.mark.skipif(
    not KUBERAY.is_dir(), reason="KubeRay's schemas are not beside this checkout (../shared/kuberay)"
)


@functools.cache
def _kuberay() -> Any:
    schema = json.loads((KUBERAY / "rayservice.v1.schema.json").read_text("utf-8"))
    return jsonschema.Draft7Validator(schema)


def kuberay_knows_every_field(d: Deployed) -> Iterator[str]:
    for each in d.of("RayService"):
        for error in _kuberay().iter_errors(each):
            yield f"RayService {error.json_path}: {error.message[:300]}"


def kubernetes_knows_every_field(d: Deployed) -> Iterator[str]:
    for each in d.objects:
        if each["kind"] not in {"RayService", *ELSEWHERE}:
            for version in KUBERNETES:
                yield from _problems(json.dumps(each), version)


@functools.cache
def _problems(text: str, version: str) -> tuple[str, ...]:
    import kubernetes_validate

    each = json.loads(text)
    try:
        kubernetes_validate.validate(each, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        where = ".".join(str(part) for part in error.path)
        return (f"{each['kind']} {each['metadata']['name']} {where} ({version}): {error.message[:300]}",)
    return ()
