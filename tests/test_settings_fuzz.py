"""Any value anywhere in a configuration: it is taken, or the problem is told without the value."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from serve_app.priors import breaker_config, cost_model, planner_config
from serve_app.settings import AppSettings, LiveSettings
from serve_app.wording import explain
from tests.support.effort import examples
from tests.support.local_service import read_config

CANARY = "canary-91c4"
NAMES = ("disco.yaml", "simulated.yaml", "openai.yaml")

anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats()
    | st.sampled_from(["", CANARY, f"{CANARY}\x00\n", "1e999", "-1", "nan"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "kind", "name"]), inner),
    max_leaves=5,
)


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every path of the tree, inner ones included."""
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in pairs:
        yield (*path, key)
        yield from places(value, (*path, key))


def changed(tree: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    tree = copy.deepcopy(tree)
    inner: Any = tree
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return tree


@cache
def sound(name: str) -> tuple[Any, list[dict[str, Any]], list[list[tuple[Any, ...]]]]:
    """A shipped configuration as it is written, with every default, and all its places."""
    documents = read_config(name)
    pairs = zip((AppSettings, LiveSettings), documents, strict=True)
    trees = [model.model_validate(document).model_dump(mode="json") for model, document in pairs]
    return documents, trees, [sorted(places(tree), key=str) for tree in trees]


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=examples(80, 600))
@given(data=st.data(), value=anything)
def test_any_value_in_any_place(name: str, part: int, data: st.DataObject, value: Any) -> None:
    documents, trees, paths = sound(name)
    model, tree = (AppSettings, LiveSettings)[part], trees[part]
    path = data.draw(st.sampled_from(paths[part]))
    document = changed(tree, path, value)
    try:
        taken = model.model_validate(document)
    except ValidationError as error:
        problems = explain(error, document)
        assert problems
        assert CANARY not in "".join(problems), "a rejected value may be a secret"
        assert "Input" not in "".join(problems), "pydantic's own words"
        return
    json.dumps(taken.model_dump(mode="json"), allow_nan=False)
    app = taken if isinstance(taken, AppSettings) else AppSettings.model_validate(documents[0])
    live = taken if isinstance(taken, LiveSettings) else LiveSettings.model_validate(documents[1])
    try:
        live.check_against(app)
    except ValueError:
        return
    assert breaker_config(live).shortest <= breaker_config(live).longest
    assert planner_config(live).budget == live.policy.budget
    assert set(cost_model(app, live).unit) == set(app.endpoints)
