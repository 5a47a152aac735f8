"""Every rule catches the mistakes it is for."""

from __future__ import annotations

import pytest

from tests.k8s import placement_rules as places
from tests.k8s import schemas
from tests.k8s.manifests import COMPONENTS, deployed, needs_kustomize
from tests.k8s.mistakes import BY_KUBERAY, MISTAKES, main
from tests.k8s.test_manifests import RULES

pytestmark = needs_kustomize


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_mistake_is_caught(mistake: str) -> None:
    change, rule, words = MISTAKES[mistake]
    manifests = deployed("gpu-cloud", *(c for c in COMPONENTS if c != "tracing"))
    change(manifests)
    problems = list(rule(manifests))
    assert any(words in problem for problem in problems), problems


@schemas.needs_kuberay
@pytest.mark.parametrize("mistake", BY_KUBERAY)
def test_kuberays_schema_catches_the_mistake(mistake: str) -> None:
    change, words = BY_KUBERAY[mistake]
    manifests = deployed("gpu-cloud")
    change(manifests)
    assert any(words in problem for problem in schemas.kuberay_knows_every_field(manifests))


def test_a_key_of_a_service_that_is_not_in_a_secret_is_caught() -> None:
    manifests = deployed("remote-cloud")
    main(manifests, "cloud")["env"] = [{"name": "OPENAI_API_KEY", "value": "sk-shown-to-everybody"}]
    (problem,) = places.keys_of_services_are_where_they_are_used(manifests)
    assert "OPENAI_API_KEY" in problem


def test_every_rule_has_a_mistake() -> None:
    caught = {rule for _, rule, _ in MISTAKES.values()}
    assert set(RULES) <= {*caught, places.keys_of_services_are_where_they_are_used}
