"""A model as a folder: config, weights and tokenizer, as transformers saves it and vLLM serves it."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from actors.engines.models import KNOWN, cache_directory

#: Bytes; no safetensors file has a larger header.
_LONGEST_HEADER: Final = 100_000_000


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """What the folder's configuration says.

    trained_context: tokens; None where it does not say. rows: ids the model can choose from, at least those of its
    tokenizer. declared_ends: ids that end an answer. settings: the tokenizer's configuration.
    """

    path: Path
    architecture: str
    trained_context: int | None
    rows: int
    declared_ends: frozenset[int]
    settings: Mapping[str, Any]
    chat_template: str | None

    def special(self, name: str) -> str | None:
        """The text of a special token such as ``bos_token``."""
        token = self.settings.get(name)
        if isinstance(token, dict):
            token = token.get("content")
        return token if isinstance(token, str) else None


def folder_of(model: str, directory: Path | None = None) -> Path:
    """The folder behind a setting's value. Raises ``FileNotFoundError`` that names the field and the remedy."""
    if model in KNOWN:
        path = (directory or cache_directory()) / model
        if (path / "config.json").is_file():
            return path
        raise FileNotFoundError(
            f"engine.model: {model} is not there as a model folder yet; run `disco model convert {model}`"
        )
    path = Path(model).expanduser()
    if (path / "config.json").is_file():
        return path
    if path.is_file():
        raise FileNotFoundError(
            f"engine.model: {path} is a file; make a model folder of it with "
            f"`disco model convert {path} {path.with_suffix('')}`"
        )
    raise FileNotFoundError(
        f"engine.model: there is no model folder {str(path)!r} with a config.json, and no known model of that name; "
        f"make one with `disco model convert SOURCE {path}`"
    )


def read_folder(path: Path) -> ModelFolder:
    """Raises ``ValueError`` that names the file and the remedy where something is missing or damaged."""
    config = _json(path / "config.json")
    generation = _json(path / "generation_config.json") if (path / "generation_config.json").is_file() else {}
    settings = _json(path / "tokenizer_config.json") if (path / "tokenizer_config.json").is_file() else {}
    if not (path / "tokenizer.json").is_file():
        raise ValueError(
            f"{path.name} has no tokenizer.json; `disco model convert {path} DIR` writes a folder that has one"
        )
    _check_weights(path)
    text = config.get("text_config")
    inner = text if isinstance(text, dict) else config
    architectures = config.get("architectures")
    return ModelFolder(
        path=path,
        architecture=str(architectures[0]) if isinstance(architectures, list) and architectures else "unknown",
        trained_context=_number(inner.get("max_position_embeddings")),
        rows=_number(inner.get("vocab_size")) or 0,
        declared_ends=_ids(generation.get("eos_token_id")) | _ids(inner.get("eos_token_id")),
        settings=settings,
        chat_template=_template(path, settings),
    )


def _json(file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(file.read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        raise ValueError(f"{file} cannot be read as a JSON object; convert or fetch the model again") from None


def _template(path: Path, settings: Mapping[str, Any]) -> str | None:
    file = path / "chat_template.jinja"
    if file.is_file():
        return file.read_text("utf-8")
    found = settings.get("chat_template")
    if isinstance(found, list):
        named = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _check_weights(path: Path) -> None:
    weights = sorted(path.glob("*.safetensors"))
    if not weights and not any(path.glob("*.bin")):
        raise ValueError(f"{path.name} has no weights (*.safetensors); convert or fetch the model again")
    for file in weights:
        if not _is_whole(file):
            raise ValueError(f"{file} is cut short or damaged; convert or fetch the model again")


def _is_whole(file: Path) -> bool:
    """Whether a safetensors file is as long as its header says."""
    with file.open("rb") as opened:
        try:
            (length,) = struct.unpack("<Q", opened.read(8))
            header = json.loads(opened.read(length)) if length <= _LONGEST_HEADER else {}
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        except (struct.error, ValueError, TypeError, AttributeError, KeyError, IndexError):
            return False
    return bool(ends) and file.stat().st_size == 8 + length + max(ends)


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _ids(value: object) -> frozenset[int]:
    values = value if isinstance(value, list) else [value]
    return frozenset(number for number in values if isinstance(number, int))
