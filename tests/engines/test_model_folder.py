"""What is read from a model folder, and what is said where one is not sound."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from actors.engines.model_folder import folder_of, read_folder


def safetensors(data: bytes = bytes(8)) -> bytes:
    header = json.dumps(
        {"__metadata__": {}, "w": {"dtype": "F32", "shape": [2], "data_offsets": [0, len(data)]}}
    ).encode()
    return struct.pack("<Q", len(header)) + header + data


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    write(path, "config.json", architectures=["TinyForCausalLM"], max_position_embeddings=512, vocab_size=9)
    write(path, "tokenizer.json")
    (path / "model.safetensors").write_bytes(safetensors())
    return path


def write(folder: Path, name: str, **content: Any) -> None:
    (folder / name).write_text(json.dumps(content))


def test_the_least_that_is_needed(folder: Path) -> None:
    found = read_folder(folder)
    assert (found.architecture, found.trained_context, found.rows) == ("TinyForCausalLM", 512, 9)
    assert found.declared_ends == frozenset()
    assert found.chat_template is None
    assert found.special("bos_token") is None


def test_ends_are_gathered_from_wherever_they_are_declared(folder: Path) -> None:
    write(folder, "config.json", text_config={"eos_token_id": 3, "max_position_embeddings": 64, "vocab_size": 5})
    write(folder, "generation_config.json", eos_token_id=[1, 2])
    found = read_folder(folder)
    assert found.declared_ends == {1, 2, 3}
    assert (found.architecture, found.trained_context, found.rows) == ("unknown", 64, 5)


@pytest.mark.parametrize("token", ["<s>", {"content": "<s>", "lstrip": False}])
def test_special_tokens_come_in_two_forms(folder: Path, token: object) -> None:
    write(folder, "tokenizer_config.json", bos_token=token)
    assert read_folder(folder).special("bos_token") == "<s>"


@pytest.mark.parametrize(
    "template", ["plain", [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "plain"}]]
)
def test_a_template_stands_in_the_tokenizers_configuration(folder: Path, template: object) -> None:
    write(folder, "tokenizer_config.json", chat_template=template)
    assert read_folder(folder).chat_template == "plain"
    (folder / "chat_template.jinja").write_text("own file")
    assert read_folder(folder).chat_template == "own file"


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda folder: (folder / "tokenizer.json").unlink(), r"no tokenizer\.json; `disco model convert .*model DIR`"),
        (lambda folder: (folder / "model.safetensors").unlink(), r"no weights"),
        (lambda folder: (folder / "config.json").write_text("{"), r"config\.json cannot be read"),
        (lambda folder: (folder / "config.json").write_text("3"), r"config\.json cannot be read"),
        (lambda folder: (folder / "model.safetensors").write_bytes(safetensors()[:-1]), r"cut short or damaged"),
        (lambda folder: (folder / "model.safetensors").write_bytes(safetensors()[:20]), r"cut short or damaged"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\xff" * 40), r"cut short or damaged"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b""), r"cut short or damaged"),
    ],
)
def test_damage_is_named_with_the_remedy(folder: Path, damage: Any, told: str) -> None:
    damage(folder)
    with pytest.raises(ValueError, match=told):
        read_folder(folder)


def test_folders_are_found_by_path_and_by_name(folder: Path, tmp_path: Path) -> None:
    assert folder_of(str(folder)) == folder
    folder.rename(tmp_path / "smollm2-135m-instruct")
    assert folder_of("smollm2-135m-instruct", tmp_path) == tmp_path / "smollm2-135m-instruct"


def test_a_folder_that_is_not_there_names_field_and_remedy(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"engine\.model.*`disco model convert smollm2-135m-instruct`"):
        folder_of("smollm2-135m-instruct", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"engine\.model: there is no model folder.*disco model convert SOURCE"):
        folder_of(str(tmp_path / "nowhere"))
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(FileNotFoundError, match=r"engine\.model: .*is a file.*convert .*/m\.gguf .*/m`"):
        folder_of(str(tmp_path / "m.gguf"))
