"""YAML that would take long to read is refused at once, with its place."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.strict_yaml import DEEPEST, LONGEST, NotYaml, read_yaml


def laughs(levels: int) -> str:
    """A list of nines of the level before, ten times as large with each."""
    lines = ["l0: &l0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 1500, f"line 1, column {DEEPEST + 1}: nested more than {DEEPEST} levels"),
        ("{a: " * 1500, f"nested more than {DEEPEST} levels"),
        ("- " * 1500, f"nested more than {DEEPEST} levels"),
        ("".join(" " * level + "a:\n" for level in range(400)), f"line {DEEPEST}, column {DEEPEST}: nested"),
        ("# " + "x" * LONGEST, f"longer than {LONGEST:,} characters"),
        (laughs(9), "more than 100,000 values"),
        ("a: &a [*a]", "line 1, column 8: more than 100,000 values"),
        ("a: 1\nb: 2\na: 3", "line 3, column 1: the key a appears twice"),
        ("{[1]: 2}", "line 1, column 2: a key must be a word"),
        ("a: 2020-99-99", "line 1, column 4: this is no timestamp"),
        ("a: 1\nb: " + "1" * 6000, "line 2, column 4: this is no int"),
        ("a: !!binary x", "line 1, column 4: "),
        ("a: !!bool x", "line 1, column 4: this is no bool"),
        ("a: !!set x", "its tag"),
        ("a: !!float x", "line 1, column 4: this is no float"),
    ],
)
def test_what_cannot_be_a_configuration_is_refused_with_its_place(text: str, words: str) -> None:
    with pytest.raises(NotYaml) as caught:
        read_yaml(text)
    assert words in str(caught.value)


def test_anchors_may_be_used() -> None:
    assert read_yaml("a: &a {x: [1, 2]}\nb: *a\nc: {<<: *a, y: 3}") == {
        "a": {"x": [1, 2]},
        "b": {"x": [1, 2]},
        "c": {"x": [1, 2], "y": 3},
    }


def test_depth_is_that_of_the_place_not_of_the_file() -> None:
    assert len(read_yaml("- [[[[1]]]]\n" * 100)) == 100


@given(st.text(alphabet="[]{}:&*-a \n#'\"|>!%", max_size=60))
def test_any_text_is_a_document_or_refused(text: str) -> None:
    with suppress(NotYaml):
        read_yaml(text)
