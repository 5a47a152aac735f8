"""Headers of GGUF files."""

from __future__ import annotations

import struct
from pathlib import Path

STRING, ARRAY, UINT32 = 8, 9, 4


def text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def header(*pairs: bytes, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, 0, len(pairs)) + b"".join(pairs)


def context(tokens: int, architecture: str = "llama") -> bytes:
    return pair(f"{architecture}.context_length", UINT32, struct.pack("<I", tokens))


ARCHITECTURE = pair("general.architecture", STRING, text("llama"))


def write_model(path: Path, trained: int) -> Path:
    """A file whose header says that its model was trained on ``trained`` tokens of context."""
    path.write_bytes(header(ARCHITECTURE, context(trained)))
    return path
