from __future__ import annotations

import pytest

from actors.labels import Labels, complaint, meets, unmet

HEAD: Labels = {"ray.io/node-id": "1", "tier": "cloud"}
PHONE: Labels = {"ray.io/node-id": "2", "tier": "edge", "cpu-arch": "arm64"}


@pytest.mark.parametrize(
    ("condition", "fits"),
    [
        ("edge", {"edge"}),
        ("!edge", {"cloud", "far", None}),
        ("in(edge,cloud)", {"edge", "cloud"}),
        ("in(edge, cloud)", {"edge", "cloud"}),
        ("!in(edge, cloud)", {"far", None}),
    ],
)
def test_conditions_are_judged_as_ray_judges_them(condition: str, fits: set[str | None]) -> None:
    assert {value for value in ("edge", "cloud", "far", None) if meets(condition, value)} == fits


@pytest.mark.parametrize(
    ("selector", "nodes", "missing"),
    [
        ({}, [HEAD], {}),
        ({"tier": "edge"}, [HEAD, PHONE], {}),
        ({"tier": "edge", "cpu-arch": "!x86"}, [HEAD, PHONE], {}),
        ({"tier": "edge", "cpu-arch": "riscv"}, [HEAD, PHONE], {"cpu-arch": "riscv"}),
        ({"tier": "edge"}, [], {"tier": "edge"}),
        # One node has to meet all of them.
        ({"tier": "cloud", "cpu-arch": "arm64"}, [HEAD, PHONE], {"cpu-arch": "arm64"}),
    ],
)
def test_what_the_nearest_node_lacks(selector: Labels, nodes: list[Labels], missing: Labels) -> None:
    assert unmet(selector, nodes) == missing


def test_a_complaint_names_the_labels_and_the_remedy() -> None:
    assert complaint({"tier": "edge"}, [PHONE]) is None
    told = complaint({"tier": "edge", "room": "in(lab,hall)"}, [HEAD, PHONE])
    assert told is not None
    assert "room: in(lab,hall)" in told
    assert "tier" not in told
    assert "ray start --labels" in told
