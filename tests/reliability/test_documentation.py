"""docs/reliability.md names tests and settings; both have to exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from serve_app.settings import LimitSettings, MigrationSettings, ReaderSettings

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "reliability.md").read_text("utf-8")


def test_every_test_that_is_named_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::((?:test_|Test)\w+)`", TEXT)
    assert len(named) > 80
    missing = [f"{path}::{name}" for path, name in named if name not in names_in(path)]
    assert missing == []


def test_every_reliability_test_is_named() -> None:
    here = Path(__file__).parent
    files = [path for path in here.glob("test_*.py") if path != Path(__file__)]
    unnamed = {
        f"{path.name}::{name}"
        for path in files
        for name in names_in(path.relative_to(ROOT).as_posix())
        if name.lower().startswith("test") and f"{path.name}::{name}`" not in TEXT
    }
    assert unnamed == set()


def test_every_setting_that_is_named_exists() -> None:
    sections = {"limits": LimitSettings, "migration": MigrationSettings, "reader": ReaderSettings}
    named = re.findall(r"`(limits|migration|reader)\.(\w+)`", TEXT)
    assert named
    assert [f"{section}.{field}" for section, field in named if field not in sections[section].model_fields] == []


def names_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
