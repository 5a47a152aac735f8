"""YAML whose mistakes are said, and which is read in bounded time.

Of two equal keys the library would take the last without a word; and a few lines that are nested, or that repeat each
other by anchors, keep it and whoever validates the result busy for as long as one likes.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

import yaml

#: Characters of a file: some 5,000 API keys, or five seconds of reading.
LONGEST: Final = 500_000

#: Levels of lists and mappings; no configuration has more than a dozen.
DEEPEST: Final = 50

#: Values in a document, each counted as often as it is repeated.
MOST: Final = 100_000


#: What the library lets through where a value cannot be made of its text.
_UNMADE: Final = (ValueError, TypeError, LookupError, OverflowError, AttributeError)


class NotYaml(ValueError):
    """The message names the place, and never quotes a value."""


def read_yaml(text: str) -> Any:
    """The document. Raises NotYaml, also where a key appears twice, or where it is too long or too deep."""
    if len(text) > LONGEST:
        raise NotYaml(f"the file is longer than {LONGEST:,} characters; split it, or remove what is not needed")
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader that is stricter
    except yaml.YAMLError as error:
        raise NotYaml(_problem(error)) from None
    except _UNMADE:
        raise NotYaml("a value is not of the kind that its tag (!!) names") from None


class _Loader(yaml.SafeLoader):
    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0
        self._count = 0
        self._weights: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        repeated = self.check_event(yaml.AliasEvent)
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        before = self._count
        self._depth += 1
        if self._depth > DEEPEST:
            raise _error(f"nested more than {DEEPEST} levels deep; this is no configuration", mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        # What repeats itself is not weighed yet.
        self._count += self._weights.get(id(node), MOST + 1) if repeated else 1
        if self._count > MOST:
            raise _error(f"more than {MOST:,} values, repetitions by anchors included", mark)
        self._weights[id(node)] = self._count - before
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except _UNMADE:
            # Dates, numbers and the like that look like one and are none.
            kind = node.tag.rpartition(":")[2]
            raise _error(f"this is no {kind}; put it in quotes if it is a text", node.start_mark) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _error("a key must be a word", key.start_mark)
            if key.value in seen:
                raise _error(f"the key {key.value} appears twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _error(problem: str, mark: yaml.Mark) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(None, None, problem, mark)


def _problem(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    what = getattr(error, "problem", None) or "this is not YAML"
    return f"line {mark.line + 1}, column {mark.column + 1}: {what}" if mark is not None else str(what)
