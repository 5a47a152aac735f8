"""Configurations, JSON and Python in README.md and docs/ are what they say they are; links lead somewhere."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serve_app.cli.configfile import load
from serve_app.settings import AppSettings, LiveSettings
from serve_app.strict_yaml import read_yaml
from tests.docs.blocks import ROOT, Block, anchors, blocks, links, pages
from tests.docs.service import answering

#: Languages of blocks that are not tried here, and why.
NOT_TRIED = {
    "": "shows what something looks like",
    "text": "shows what something looks like",
    "mermaid": "a drawing",
    "sh": "see test_commands",
    "bash": "see test_commands",
    "console": "see test_commands",
    "promql": "the dashboards have tests of their own",
    "dockerfile": "the images have tests of their own",
}
#: Keys of what is Kubernetes' or kustomize's; tests of their own read those.
KUBERNETES = {"apiVersion", "resources", "components"}
DUMMY = {"endpoints": {"cloud": {"kind": "cloud", "engine": {"type": "simulated"}}}}


def of(language: str) -> list[Block]:
    return [block for block in blocks() if block.language == language]


def test_every_language_is_tried_or_has_a_reason_not_to_be() -> None:
    assert {block.language for block in blocks()} <= {"yaml", "json", "python"} | set(NOT_TRIED)


@pytest.mark.parametrize("block", of("yaml"), ids=str)
def test_configurations(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A hash that is cut short in print.
    text = re.sub(r'"([0-9a-f]+)…"', lambda match: f'"{match[1]:0<64}"', block.text)
    for variable in re.findall(r"api_key_env: (\w+)", text):
        monkeypatch.setenv(variable, "sk-test")
    document = read_yaml(text) if "\n---\n" not in text else None
    if not isinstance(document, dict) or KUBERNETES & set(document):
        assert any(f"{word}:" in text for word in KUBERNETES)
    elif set(document) == {"args"}:
        AppSettings.model_validate(DUMMY | document["args"])
    elif set(document) == {"user_config"}:
        LiveSettings.model_validate(document["user_config"])
    elif "applications" in document:
        path = tmp_path / "c.yaml"
        path.write_text(text, "utf-8")
        load(str(path))
    elif set(document) <= set(LiveSettings.model_fields):
        LiveSettings.model_validate(document)
    elif set(document) <= set(AppSettings.model_fields):
        AppSettings.model_validate(DUMMY | document)
    elif all(isinstance(value, dict) and "engine" in value for value in document.values()):
        AppSettings.model_validate({"endpoints": document})
    else:
        raise AssertionError(f"{block}: neither args, user_config, endpoints nor a whole file: {', '.join(document)}")


@pytest.mark.parametrize("block", of("json"), ids=str)
def test_json(block: Block) -> None:
    try:
        json.loads(block.text)
    except ValueError:
        for line in block.text.splitlines():
            json.loads(line)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with answering() as url:
        yield url


@pytest.mark.parametrize("block", of("python"), ids=str)
def test_python(block: Block, url: str) -> None:
    """Run against the scripted service."""
    printed, scope = io.StringIO(), dict[str, Any]()
    with contextlib.redirect_stdout(printed):
        exec(compile(re.sub(r"http://[\w.]+(:\d+)?", url, block.text), str(block), "exec"), scope)
    if client := scope.get("client"):
        client.close()
    assert "Hello there" in printed.getvalue()


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links(page: Path) -> None:
    broken = []
    for target in links(page):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors(path)):
            broken.append(target)
    assert broken == []
