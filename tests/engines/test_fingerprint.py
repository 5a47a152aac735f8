"""Only what two programs agree on in everything may travel as ids."""

from __future__ import annotations

from typing import Any

import pytest

from actors.engines.fingerprint import fingerprint

FACTS: dict[str, Any] = {
    "pieces": [b"", b"a", b"b", b"ab"],
    "kind": 2,
    "bos": 0,
    "adds_bos": True,
    "end_of_generation": frozenset({0}),
    "controls": {0: "<s>"},
}


@pytest.mark.parametrize(
    ("fact", "other"),
    [
        ("pieces", [b"", b"b", b"a", b"ab"]),
        ("pieces", [b"", b"a", b"ba", b"b"]),
        ("pieces", [b"", b"a", b"b", b"ab", b"c"]),
        ("kind", 1),
        ("bos", 1),
        ("bos", None),
        ("adds_bos", False),
        ("end_of_generation", frozenset({0, 3})),
        ("controls", {0: "</s>"}),
        ("controls", {1: "<s>"}),
    ],
)
def test_every_fact_counts(fact: str, other: Any) -> None:
    assert fingerprint(**FACTS) != fingerprint(**{**FACTS, fact: other})


def test_the_order_in_which_facts_were_read_does_not() -> None:
    controls = {0: "<s>", 3: "<x>"}
    ends = frozenset({3, 0})
    one = fingerprint(**{**FACTS, "controls": controls, "end_of_generation": ends})
    assert one == fingerprint(**{**FACTS, "controls": dict(reversed(controls.items())), "end_of_generation": {0, 3}})
