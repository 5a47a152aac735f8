"""docs/metrics.md lists what there is, and the words of labels are in the glossary."""

from __future__ import annotations

import re
from pathlib import Path

from serve_app.core.legs import LegOutcome, LegReason
from serve_app.instruments import CATALOGUE, Kind

DOCS = Path(__file__).parents[1] / "docs"


def row(name: str, kind: Kind, labels: tuple[str, ...], meaning: str) -> str:
    shown = name + "_total" if kind is Kind.COUNTER else name
    return f"| `{shown}` | {kind} | {', '.join(f'`{label}`' for label in labels)} | {meaning}. |"


def test_the_table_is_the_catalogue() -> None:
    listed = [line for line in (DOCS / "metrics.md").read_text("utf-8").splitlines() if line.startswith("| `")]
    assert listed == [row(each.name, each.kind, each.labels, each.help) for each in CATALOGUE]


def test_the_words_of_labels_are_in_the_glossary() -> None:
    glossary = (DOCS / "glossary.md").read_text("utf-8")
    for word in (*LegReason, *LegOutcome):
        assert re.search(rf"^\| `{word}` \|", glossary, re.MULTILINE), word
