"""What a GGUF file says of its model, read from its header alone: the weights may be large, and llama.cpp not here yet.

The format: a magic word, the version, two counts, then keys with typed values and the tensors' shapes, little-endian
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
"""

from __future__ import annotations

import contextlib
import math
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_ARCHITECTURE: Final = "general.architecture"
_CONTEXT: Final = ".context_length"
_ALIGNMENT: Final = "general.alignment"
_DEFAULT_ALIGNMENT: Final = 32
_MOST_DIMENSIONS: Final = 4

#: The format's numbers for types of values: scalars by their `struct` code, and the two that have a length.
_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING: Final = 8
_ARRAY: Final = 9

#: Bytes; no key and no name of an architecture comes near.
_LONGEST_NAME: Final = 65_535


def trained_context(path: Path) -> int | None:
    """Tokens of context that the model was trained on; None where the header does not say.

    Raises ``ValueError`` that names the field and the remedy if this is no GGUF file.
    """
    facts: dict[str, object] = {}
    with _opened(path) as file:
        _, pairs = _counts(file)
        for key, value in _pairs(file, pairs):
            facts[key] = value
            trained = facts.get(f"{facts.get(_ARCHITECTURE)}{_CONTEXT}")
            if isinstance(trained, int):
                return trained
    return None


def facts_of(path: Path) -> dict[str, object]:
    """The numbers and short texts of the header. Raises like ``trained_context``."""
    with _opened(path) as file:
        _, pairs = _counts(file)
        return {key: value for key, value in _pairs(file, pairs) if value is not None}


def needed_bytes(path: Path, blocks: Mapping[int, tuple[int, int]]) -> int:
    """How long the file must be to hold all of its tensors. Raises like ``trained_context``.

    blocks: for each of ggml's types of tensors, values per block and bytes per block.
    """
    with _opened(path) as file:
        tensors, pairs = _counts(file)
        alignment = dict(_pairs(file, pairs)).get(_ALIGNMENT)
        end = 0
        for _ in range(tensors):
            _name(file)
            (dimensions,) = _unpack(file, "I")
            values = math.prod(_unpack(file, f"{min(dimensions, _MOST_DIMENSIONS)}Q"))
            kind, offset = _unpack(file, "IQ")
            per_block, size = blocks[kind]
            end = max(end, offset + values // per_block * size)
        unit = alignment if isinstance(alignment, int) and alignment > 0 else _DEFAULT_ALIGNMENT
        return -(-file.tell() // unit) * unit + end


def beyond_training(context_length: int, trained: int) -> str | None:
    """What is wrong with serving that many tokens of context, with the remedy; None if nothing is."""
    if context_length <= trained:
        return None
    return (
        f"engine.context_length: {context_length} tokens are more than the {trained} that the model was trained on; "
        f"set at most {trained}"
    )


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        with path.open("rb") as file:
            yield file
    except (OSError, OverflowError, ValueError, LookupError, struct.error):
        raise ValueError(
            f"engine.model: {path.name} cannot be read as a GGUF file; give the path of a whole one, "
            "or the name of a known model"
        ) from None


def _counts(file: BinaryIO) -> tuple[int, int]:
    """How many tensors, and how many keys."""
    if file.read(4) != _MAGIC:
        raise ValueError("no GGUF file")
    version, tensors, pairs = _unpack(file, "IQQ")
    if version not in _VERSIONS:
        raise ValueError("an unknown version")
    return tensors, pairs


def _pairs(file: BinaryIO, count: int) -> Iterator[tuple[str, object]]:
    """The value is None where it is an array, or a text longer than any name."""
    for _ in range(count):
        key = _name(file)
        (kind,) = _unpack(file, "I")
        value: object = None
        if kind in _SCALARS:
            (value,) = _unpack(file, _SCALARS[kind])
        elif kind == _STRING:
            value = _text(file)
        else:
            _skip(file, kind)
        yield key, value


def _skip(file: BinaryIO, kind: int) -> None:
    inner, count = _unpack(file, "IQ") if kind == _ARRAY else (kind, 1)
    if inner in _SCALARS:
        file.seek(count * struct.calcsize(f"<{_SCALARS[inner]}"), os.SEEK_CUR)
    elif inner == _STRING:
        for _ in range(count):
            (length,) = _unpack(file, "Q")
            file.seek(length, os.SEEK_CUR)
    else:
        raise ValueError("an unknown type of value")


def _name(file: BinaryIO) -> str:
    text = _text(file)
    if text is None:
        raise ValueError("an impossible length")
    return text


def _text(file: BinaryIO) -> str | None:
    (length,) = _unpack(file, "Q")
    if length > _LONGEST_NAME:
        file.seek(length, os.SEEK_CUR)
        return None
    return file.read(length).decode("utf-8")


def _unpack(file: BinaryIO, codes: str) -> tuple[Any, ...]:
    """Raises ``struct.error`` at the end of the file."""
    size = struct.calcsize(f"<{codes}")
    return struct.unpack(f"<{codes}", file.read(size))
