"""What a missing extra is answered with."""

from __future__ import annotations

import shlex
import sys
import tomllib
from pathlib import Path

from serve_app.cli.engines import _PACKAGES
from serve_app.extras import installing

PROJECT = tomllib.loads(Path(__file__, "../../pyproject.toml").resolve().read_text("utf-8"))["project"]


def test_the_interpreter_that_lacks_it_installs_it() -> None:
    program, *arguments = shlex.split(installing("llama", "sim"))
    assert program == sys.executable
    assert arguments == ["-m", "pip", "install", f"{PROJECT['name']}[llama,sim]"]


def test_what_engines_need_is_an_extra_of_this_project() -> None:
    for package in _PACKAGES:
        extra = package.remedy.partition("[")[2].partition("]")[0]
        assert extra in PROJECT["optional-dependencies"]
