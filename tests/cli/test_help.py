"""What `disco` says about itself: commands in groups, exit codes, completion."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from serve_app.cli import exits
from serve_app.cli.exits import BAD_INPUT, EXIT_OF, OK
from serve_app.cli.main import FORESEE, RUN, USE, app
from serve_app.client.errors import Cause

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")


def test_help_has_groups_and_exit_codes() -> None:
    result = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "100", "TERM": "dumb"})
    assert result.exit_code == OK
    places = [result.output.index(title) for title in (RUN, USE, FORESEE)]
    assert places == sorted(places)
    for command in ("up", "check", "config", "chat", "top", "bench", "simulate", "traces", "version"):
        assert re.search(rf"^\W*{command}\s", result.output, re.MULTILINE), command
    assert "Exit codes" in result.output


def test_the_readme_lists_every_exit_code() -> None:
    table = README.partition("| exit code | |")[2].partition("\n\n")[0]
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    assert listed == {value for value in vars(exits).values() if type(value) is int}
    assert set(EXIT_OF) == set(Cause)


def has_float(annotation: Any) -> bool:
    return annotation is float or any(map(has_float, get_args(annotation)))


def numbers(group: typer.Typer, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every option of every command that takes a number with a fraction."""
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        yield from numbers(inner.typer_instance, (*path, str(inner.name)))
    for command in group.registered_commands:
        assert command.callback is not None
        name = command.name or command.callback.__name__
        for option, annotation in get_type_hints(command.callback).items():
            if has_float(annotation):
                yield (*path, name), f"--{option.replace('_', '-')}"


NUMBERS = list(numbers(app))


def test_the_commands_have_numbers() -> None:
    assert {(("bench",), "--expected-ttft"), (("device", "add"), "--billion")} <= set(NUMBERS)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(("command", "option"), NUMBERS)
def test_no_number_may_be_endless_or_none(command: tuple[str, ...], option: str, value: str) -> None:
    required = {("device", "add"): ["x", "http://a/v1", "m", "--owner", "alice"], ("device", "report"): ["x"]}
    arguments = [*command, *required.get(command, []), f"{option}={value}"]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == BAD_INPUT
    assert option in result.output


def test_words_are_completed() -> None:
    environment = {"_DISCO_COMPLETE": "complete_bash", "COMP_WORDS": "disco con", "COMP_CWORD": "1"}
    assert CliRunner().invoke(app, [], prog_name="disco", env=environment).output.split() == ["config"]


def run(*arguments: str) -> tuple[int, Any]:
    result = CliRunner().invoke(app, [*arguments, "--json"])
    return result.exit_code, json.loads(result.stdout)


def test_json_for_scripts(tmp_path: Path) -> None:
    code, checked = run("check", "simulated")
    assert (code, checked["problems"]) == (OK, [])
    assert ["listens on", "127.0.0.1:8000"] in checked["facts"]
    (tmp_path / "bad.yaml").write_text("applications: 7", "utf-8")
    code, checked = run("check", str(tmp_path / "bad.yaml"))
    assert code == BAD_INPUT
    assert any("applications" in problem for problem in checked["problems"])
    code, models = run("model", "list")
    assert code == OK
    assert {"name", "licence", "megabytes", "path"} == set(models[0])
    code, versions = run("version")
    assert code == OK
    assert versions["ray"].startswith("2.")
