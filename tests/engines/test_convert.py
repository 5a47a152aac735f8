"""What is refused before and after transformers is asked, and that a folder appears whole or not at all."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from actors.engines import convert as module
from actors.engines.convert import ConvertError, convert
from actors.engines.model_folder import ModelFolder
from serve_app.cli.exits import FAILED
from serve_app.cli.main import app
from serve_app.extras import installing
from tests.support.gguf import ARCHITECTURE, context, text

#: Of ggml's type 2: 32 values in 18 bytes.
BLOCKS = {2: (32, 18)}
NEEDED = 64 * 2 // 32 * 18


def gguf(path: Path, missing: int = 0) -> Path:
    """A file with one tensor of 64 x 2 values, cut short by ``missing`` bytes."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 2) + ARCHITECTURE + context(512)
    head += text("w") + struct.pack("<IQQIQ", 2, 64, 2, 2, 0)
    head += bytes(-len(head) % 32)
    path.write_bytes((head + bytes(NEEDED))[: len(head) + NEEDED - missing])
    return path


class FakeTransformers:
    """Writes the files of a model; ``refuse`` is raised in the place of reading its weights."""

    def __init__(self, refuse: Exception | None = None) -> None:
        self.refuse = refuse
        self.read: list[tuple[str, dict[str, Any]]] = []
        self.AutoTokenizer = SimpleNamespace(from_pretrained=self._tokenizer)
        self.AutoModelForCausalLM = SimpleNamespace(from_pretrained=self._model)

    def GgufConfig(self, *, dequantize: bool) -> str:  # noqa: N802 - transformers' name
        return f"dequantize={dequantize}"

    def _tokenizer(self, place: str, **arguments: Any) -> Any:
        self.read.append((place, arguments))

        def save(folder: str) -> None:
            (Path(folder) / "tokenizer.json").write_text("{}")

        return SimpleNamespace(
            backend_tokenizer=SimpleNamespace(), bos_token=None, bos_token_id=None, save_pretrained=save
        )

    def _model(self, place: str, **arguments: Any) -> Any:
        if self.refuse is not None:
            raise self.refuse
        self.read.append((place, arguments))

        def save(folder: str) -> None:
            (Path(folder) / "config.json").write_text(json.dumps({"architectures": ["TinyForCausalLM"]}))
            (Path(folder) / "pytorch_model.bin").write_bytes(b"")
            (Path(folder) / "pytorch_model.bin").chmod(0o600)

        return SimpleNamespace(num_parameters=lambda: 1_000_000, save_pretrained=save)


@pytest.fixture
def transformers(monkeypatch: pytest.MonkeyPatch) -> FakeTransformers:
    fake = FakeTransformers()
    tools = module._Tools(fake, SimpleNamespace(bfloat16="bf16"), SimpleNamespace(), BLOCKS)
    monkeypatch.setattr(module, "_tools", lambda: tools)
    monkeypatch.setattr(module, "FolderVocabulary", lambda folder: None)
    return fake


def refused(source: Path | str, target: Path | None) -> str:
    with pytest.raises(ConvertError) as error:
        convert(str(source), target, lambda line: None)
    return str(error.value)


def test_a_file_becomes_a_folder_that_others_may_read(transformers: FakeTransformers, tmp_path: Path) -> None:
    steps: list[str] = []
    target = tmp_path / "new" / "folder"
    assert convert(str(gguf(tmp_path / "m.gguf")), target, steps.append) == target
    assert {file.name for file in target.iterdir()} == {"config.json", "pytorch_model.bin", "tokenizer.json"}
    assert [entry.name for entry in target.parent.iterdir()] == ["folder"]
    assert all(file.stat().st_mode & 0o044 == 0o044 for file in [target, *target.iterdir()])
    assert transformers.read == [
        (str(tmp_path), {"gguf_file": "m.gguf"}),
        (str(tmp_path), {"gguf_file": "m.gguf", "dtype": "bf16", "quantization_config": "dequantize=True"}),
    ]
    assert steps[-1] == f"{target} is ready"


def test_a_folder_may_hold_the_file_or_a_model(transformers: FakeTransformers, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    gguf(source / "m.gguf")
    convert(str(source), tmp_path / "a", lambda line: None)
    convert(str(tmp_path / "a"), tmp_path / "b", lambda line: None)
    assert [place for place, _ in transformers.read] == [str(source)] * 2 + [str(tmp_path / "a")] * 2
    gguf(source / "other.gguf")
    assert "neither a config.json nor exactly one GGUF file" in refused(source, tmp_path / "c")


def test_a_known_model_goes_to_where_engines_look_and_stays(
    transformers: FakeTransformers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "cache_directory", lambda: tmp_path)
    monkeypatch.setattr("actors.engines.model_folder.cache_directory", lambda: tmp_path)
    monkeypatch.setattr(module, "fetch", lambda name, progress: gguf(tmp_path / "m.gguf"))
    steps: list[str] = []
    for _ in range(2):
        assert convert("smollm2-135m-instruct", None, steps.append) == tmp_path / "smollm2-135m-instruct"
    assert len(transformers.read) == 2
    assert "is there already" in steps[-1]


def test_a_file_that_is_cut_short_or_no_model_is_named(transformers: FakeTransformers, tmp_path: Path) -> None:
    assert "m.gguf is cut short" in refused(gguf(tmp_path / "m.gguf", missing=1), tmp_path / "a")
    (tmp_path / "notes.txt").write_text("no model")
    assert "notes.txt cannot be read as a GGUF file" in refused(tmp_path / "notes.txt", tmp_path / "a")
    assert not (tmp_path / "a").exists()
    assert not transformers.read


def test_an_architecture_that_transformers_does_not_know_is_named(
    transformers: FakeTransformers, tmp_path: Path
) -> None:
    transformers.refuse = ValueError("GGUF model with architecture llama is not supported yet.\nmore")
    told = refused(gguf(tmp_path / "m.gguf"), tmp_path / "a")
    assert told.startswith("transformers cannot read m.gguf of architecture llama: GGUF model with architecture llama")
    assert "serve it by llama_cpp" in told
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.gguf"]


def test_a_folder_that_comes_out_unsound_is_not_kept(
    transformers: FakeTransformers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsound(folder: ModelFolder) -> None:
        raise ValueError("tokenizer.json has a decoder of another kind")

    monkeypatch.setattr(module, "FolderVocabulary", unsound)
    assert "decoder of another kind" in refused(gguf(tmp_path / "m.gguf"), tmp_path / "a")
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.gguf"]


def test_places_are_checked_before_any_work(transformers: FakeTransformers, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    assert "there exists; give a new folder" in refused(gguf(tmp_path / "m.gguf"), tmp_path / "there")
    (tmp_path / "file").write_text("")
    assert "cannot be written" in refused(gguf(tmp_path / "m.gguf"), tmp_path / "file" / "new")
    assert "say where the folder shall be" in refused(tmp_path / "m.gguf", None)
    assert "no file or folder" in refused(tmp_path / "nowhere", tmp_path / "a")


@pytest.mark.parametrize("package", ["accelerate", "gguf", "tokenizers", "torch", "transformers"])
def test_a_missing_package_names_the_extra(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("accelerate", "gguf", "tokenizers", "torch", "transformers"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    monkeypatch.setitem(sys.modules, package, None)
    for name in ("HF_HUB_OFFLINE", "TQDM_DISABLE"):
        monkeypatch.setenv(name, "1")
    told = refused(tmp_path, tmp_path / "a")
    assert told == f"{package} is not installed; run: {installing('convert')}"


@pytest.mark.parametrize(("failing", "code"), [(False, 0), (True, FAILED)])
def test_the_command_says_its_steps_and_why_it_failed(
    monkeypatch: pytest.MonkeyPatch, failing: bool, code: int
) -> None:
    def run(source: str, target: Path | None, progress: Callable[[str], None]) -> None:
        progress(f"converting {source} to {target}")
        if failing:
            raise ConvertError("[m.gguf] is cut short")

    monkeypatch.setattr(module, "convert", run)
    result = CliRunner().invoke(app, ["model", "convert", "m.gguf", "folder"])
    assert result.exit_code == code
    assert "converting m.gguf to folder" in result.output
    assert ("[m.gguf] is cut short" in result.output) is failing
