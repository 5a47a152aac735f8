"""What `disco` says about itself: commands in groups, exit codes, completion."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

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
