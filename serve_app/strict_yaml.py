"""YAML whose mistakes are said: of two equal keys it would take the last without a word."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml


class NotYaml(ValueError):
    """The message names the place, and never quotes a value."""


def read_yaml(text: str) -> Any:
    """The document. Raises NotYaml, also where a key appears twice."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader that also refuses duplicate keys
    except yaml.YAMLError as error:
        raise NotYaml(_problem(error)) from None
    except RecursionError:
        raise NotYaml("the file is nested too deeply") from None


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a word", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value} appears twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _problem(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    what = getattr(error, "problem", None) or "this is not YAML"
    return f"line {mark.line + 1}, column {mark.column + 1}: {what}" if mark is not None else str(what)
