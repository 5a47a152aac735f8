"""What a GGUF file says of its model, read from its header alone: the weights may be large, and llama.cpp not here yet.

The format: a magic word, the version, two counts, then keys with typed values, little-endian throughout
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any, BinaryIO, Final

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_ARCHITECTURE: Final = "general.architecture"
_CONTEXT: Final = ".context_length"

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
    try:
        with path.open("rb") as file:
            return _trained_context(file)
    except (OSError, OverflowError, ValueError, struct.error):
        raise ValueError(
            f"engine.model: {path.name} cannot be read as a GGUF file; give the path of a whole one, "
            "or the name of a known model"
        ) from None


def beyond_training(context_length: int, trained: int) -> str | None:
    """What is wrong with serving that many tokens of context, with the remedy; None if nothing is."""
    if context_length <= trained:
        return None
    return (
        f"engine.context_length: {context_length} tokens are more than the {trained} that the model was trained on; "
        f"set at most {trained}"
    )


def _trained_context(file: BinaryIO) -> int | None:
    if file.read(4) != _MAGIC:
        raise ValueError("no GGUF file")
    version, _, pairs = _unpack(file, "IQQ")
    if version not in _VERSIONS:
        raise ValueError("an unknown version")
    architecture: object = None
    contexts: dict[str, object] = {}
    for _ in range(pairs):
        key = _name(file)
        (kind,) = _unpack(file, "I")
        if key == _ARCHITECTURE and kind == _STRING:
            architecture = _name(file)
        elif key.endswith(_CONTEXT) and kind in _SCALARS:
            (contexts[key],) = _unpack(file, _SCALARS[kind])
        else:
            _skip(file, kind)
        trained = contexts.get(f"{architecture}{_CONTEXT}")
        if isinstance(trained, int):
            return trained
    return None


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
    (length,) = _unpack(file, "Q")
    if length > _LONGEST_NAME:
        raise ValueError("an impossible length")
    return file.read(length).decode("utf-8")


def _unpack(file: BinaryIO, codes: str) -> tuple[Any, ...]:
    """Raises ``struct.error`` at the end of the file."""
    size = struct.calcsize(f"<{codes}")
    return struct.unpack(f"<{codes}", file.read(size))
