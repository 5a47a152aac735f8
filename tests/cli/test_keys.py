from __future__ import annotations

import re

import pytest
import yaml
from typer.testing import CliRunner

from serve_app.access_settings import AccessSettings
from serve_app.cli.exits import BAD_INPUT
from serve_app.cli.main import app
from serve_app.keys import Keyring


def new(name: str) -> tuple[int, list[str]]:
    result = CliRunner().invoke(app, ["key", "new", name])
    return result.exit_code, result.stdout.splitlines()


def test_a_new_key_is_let_in_by_its_line_of_configuration_which_does_not_have_it() -> None:
    code, (key, line) = new("alice")
    access = AccessSettings(keys=yaml.safe_load(line))
    assert code == 0
    assert Keyring(access.keys).recognise([f"Bearer {key}"]) == "alice"
    assert key not in line


def test_every_key_is_another_one_and_hard_to_guess() -> None:
    keys = {new("alice")[1][0] for _ in range(5)}
    assert len(keys) == 5
    for key in keys:
        assert re.fullmatch(r"sk-disco-[A-Za-z0-9_-]{43}", key)


@pytest.mark.parametrize("name", ["", "two words", "x" * 33, "1st", "a\n", "sk-disco-" + "x" * 43])
def test_a_name_that_is_no_plain_word_is_refused_unseen(name: str) -> None:
    result = CliRunner().invoke(app, ["key", "new", name])
    assert (result.exit_code, result.stdout) == (BAD_INPUT, "")
    assert "NAME" in result.stderr
    assert not name or name not in result.stderr
