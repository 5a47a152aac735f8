"""Every command in README.md and docs/ is run, or read by its program, or listed here with the reason why not."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from serve_app.cli.configfile import load, shipped
from serve_app.cli.exits import OK
from serve_app.cli.main import app
from tests.docs.blocks import ROOT, Command, blocks, commands, mentioned, pages
from tests.docs.service import answering

SHELLS = ("sh", "bash", "console")

#: Programs that are not run, and why.
NOT_RUN = {
    "cmake": "builds llama.cpp on a phone",
    "docker": "needs a daemon; the images have tests of their own",
    "docker-compose": "needs a daemon",
    "git": "fetches from the network",
    "helm": "needs a cluster",
    "k3d": "makes a cluster",
    "kind": "makes a cluster",
    "kubectl": "needs a cluster; the manifests have tests of their own",
    "llama-server": "is another project's, on another machine",
    "build/bin/llama-server": "is another project's, on another machine",
    "minikube": "makes a cluster",
    "ollama": "is another project's, on another machine",
    "openssl": "is the system's",
    "phoenix": "is another project's; a test of the traces starts it",
    "pkg": "is Termux's, on a phone",
    "ssh": "needs another machine",
    "termux-wake-lock": "is Termux's, on a phone",
    "openapi-generator-cli": "is another project's",
}
#: The shell's own.
SHELL = {"cd", "export", "echo", "cp", "mkdir", "chmod", "cat", "for", "do", "done"}

#: Commands of disco whose arguments are read but which are not carried out: each starts an engine, fetches something or
#: computes for long, and has a test of its own.
READ_ONLY = {("up",), ("profile",), ("model", "fetch"), ("model", "convert"), ("simulate",), ("device",)}

#: The tree of disco's commands.
TREE: Any = typer.main.get_command(app)

ALL = [command for block in blocks() if block.language in SHELLS for command in commands(block)]
DISCO = [command for command in ALL if Path(command.words[0]).name == "disco"]


def of(*programs: str) -> list[Command]:
    return [command for command in ALL if Path(command.words[0]).name in programs]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with answering() as url:
        yield url


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Has what the documents' commands are about: configurations, a log, keys in the environment."""
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    tutorial = (ROOT / "configs" / "openai.yaml").read_text("utf-8")
    (tmp_path / "mine.yaml").write_text(tutorial, "utf-8")
    (tmp_path / "home.yaml").write_text(_only("docs/devices.md", "applications:"), "utf-8")
    (tmp_path / "log.csv").write_text("arrival_s\n0\n0.1\n0.2\n", "utf-8")
    for variable in ("OPENAI_API_KEY", "OPERATOR_KEY", "DISCO_API_KEY"):
        monkeypatch.setenv(variable, "sk-test")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _only(page: str, word: str) -> str:
    (text,) = (block.text for block in blocks() if block.page == page and word in block.text)
    return text


def read(words: tuple[str, ...]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The subcommand that ``words`` name, and its arguments. Raises what the command line would complain about."""
    command = TREE
    path, arguments, context = [], list(words), None
    while True:
        context = command.make_context(path[-1] if path else "disco", arguments, parent=context)
        if not hasattr(command, "commands"):
            return tuple(path), dict(context.params)
        name, command, arguments = command.resolve_command(context, [*context._protected_args, *context.args])
        path.append(str(name))


# --- disco ------------------------------------------------------------------------------------------------------


def test_there_are_commands() -> None:
    assert len(DISCO) > 30
    assert {"docs/tutorial.md", "docs/terminal.md", "docs/devices.md", "README.md"} <= {
        command.where.partition(":")[0] for command in DISCO
    }


@pytest.mark.parametrize("command", DISCO, ids=str)
@pytest.mark.usefixtures("folder")
def test_disco(command: Command, url: str) -> None:
    words = command.words[1:]
    if words[0].startswith("--"):
        assert words[0] in {"--install-completion", "--show-completion", "--help"}
        return
    words = tuple(re.sub(r"https?://[\w.]+(:\d+)?(/v1)?", url, word) for word in words)
    if "--plots" in words:
        # Drawn by a test of its own.
        at = words.index("--plots")
        words = (*words[:at], *words[at + 2 :])
    # The scripted service has one model only.
    words = tuple("disco" if before == "--model" else word for before, word in zip(("", *words), words, strict=False))
    path, given = read(words)
    for configuration in (given.get("config"), given.get("file")):
        if configuration is not None and configuration not in {"FILE", "CONFIG"}:
            load(configuration)
    if any(path[: len(prefix)] == prefix for prefix in READ_ONLY):
        return
    result = CliRunner().invoke(app, [*words, *_hurry(path, url, given)], input="Why is the sky blue?\n")
    assert result.exit_code == OK, result.output


def _hurry(path: tuple[str, ...], url: str, given: dict[str, Any]) -> list[str]:
    """The scripted service in place of the user's, and a load that is over at once."""
    match path:
        case ("chat",) | ("top",):
            return ["--url", url] if given["url"] != url else []
        case ("bench",):
            few = ["--requests", "2", "--gap", "0.01", "--model", "disco"]
            return [*([] if given["urls"] else [url]), *few[: 4 if given["model"] else 6]]
    return []


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_disco_in_the_text(page: Path) -> None:
    """Subcommands and options that a page mentions exist."""
    for words in mentioned(page, "disco"):
        command = TREE
        for word in words[1:]:
            if hasattr(command, "commands") and not word.startswith("-"):
                assert word in command.commands, f"{page.name}: `{' '.join(words)}`"
                command = command.commands[word]
            elif option := re.match(r"--[\w-]+", word.lstrip("[")):
                known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
                assert option[0] in known | {"--help"}, f"{page.name}: `{' '.join(words)}`"


# --- everything else --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", of("curl"), ids=str)
@pytest.mark.usefixtures("folder")
def test_curl(command: Command, url: str) -> None:
    """Against the scripted service, by curl itself."""
    line = re.sub(r"http://[\w.]+(:\d+)?", url, command.text)
    ran = subprocess.run(["bash", "-c", f"set -o pipefail; {line.replace('curl', 'curl -sS --fail', 1)}"],
                         capture_output=True, text=True, timeout=30, env=os.environ | {"no_proxy": "*"})  # fmt: skip
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("command", of("make"), ids=str)
def test_make(command: Command) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    for word in command.words[1:]:
        assert word in targets or re.fullmatch(r"[A-Z]+=.*", word), word


@pytest.mark.parametrize("command", of("python", "python3"), ids=str)
def test_python(command: Command) -> None:
    """Modules that are there, with options that they know."""
    assert command.words[1] == "-m"
    spec = importlib.util.find_spec(command.words[2])
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text("utf-8")
    for word in command.words[3:]:
        if word.startswith("--"):
            assert word.partition("=")[0] in source
        elif word.startswith("tests"):
            assert (ROOT / word).exists()


@pytest.mark.parametrize("command", of("serve"), ids=str)
@pytest.mark.usefixtures("folder")
def test_serve(command: Command) -> None:
    assert command.words[1] in {"run", "deploy", "shutdown", "status"}
    for word in command.words[2:]:
        if word.endswith(".yaml") and Path(word).exists():
            load(word)


@pytest.mark.parametrize("command", of("pip"), ids=str)
def test_pip(command: Command) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    for word in command.words:
        for extra in re.findall(r"\[([\w,-]+)\]", word):
            assert set(extra.split(",")) <= set(extras)


def test_nothing_is_left_out_without_a_reason() -> None:
    tried = {"disco", "curl", "make", "python", "python3", "serve", "pip"} | SHELL
    programs = {command.words[0] for command in ALL}
    assert {program for program in programs if Path(program).name not in tried and program not in NOT_RUN} == set()


def test_the_shipped_configurations_are_named_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert [name for name in shipped() if f"configs/{name}.yaml" not in text] == []


def test_figures_of_json_commands_are_json(url: str) -> None:
    result = CliRunner().invoke(app, ["top", "--json", "--url", url])
    assert json.loads(result.stdout)["endpoints"]
