"""Whether any node of the cluster can host an endpoint: Ray itself waits for ever, and does not say for what."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import ray

Labels = Mapping[str, str]

#: The forms of a condition: ``value``, ``in(a, b)``, and either of them behind ``!``.
_CONDITION: Final = re.compile(r"(?P<negated>!?)(?:(?:in)?\((?P<several>[^)]*)\)|(?P<one>.*))")


def meets(condition: str, value: str | None) -> bool:
    """As Ray judges one entry of a label selector. ``value``: None where the node has no such label."""
    match = _CONDITION.fullmatch(condition)
    assert match is not None
    allowed = [match["one"]] if match["several"] is None else [part.strip() for part in match["several"].split(",")]
    return (value in allowed) is not bool(match["negated"])


def unmet(selector: Labels, nodes: Sequence[Labels]) -> Labels:
    """The conditions that are missing on the node that meets most of them; empty where one meets all."""
    missing = [{key: wish for key, wish in selector.items() if not meets(wish, labels.get(key))} for labels in nodes]
    return min(missing, key=len, default=dict(selector))


def complaint(selector: Labels, nodes: Sequence[Labels]) -> str | None:
    """What no node of the cluster has, and the remedy; None where some node has it all."""
    missing = unmet(selector, nodes)
    if not missing:
        return None
    wanted = ", ".join(f"{key}: {wish}" for key, wish in missing.items())
    return (
        f"no node of the cluster has the labels of placement.label_selector; the nearest lacks {wanted}. "
        "It starts when one joins (`ray start --labels ...`)"
    )


async def missing_node(selector: Labels) -> str | None:
    """``complaint`` about the cluster as it is now."""
    if not selector:
        return None
    return complaint(selector, await asyncio.to_thread(node_labels))


def node_labels() -> list[Labels]:
    """Of each node that is alive."""
    nodes: list[Any] = ray.nodes()  # type: ignore[no-untyped-call]
    return [node["Labels"] for node in nodes if node["Alive"]]
