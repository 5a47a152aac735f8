"""One name for one vocabulary, whichever program reads it: only what two of them agree on can travel as ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from hashlib import sha256


def fingerprint(
    pieces: Iterable[bytes],
    kind: int,
    bos: int | None,
    adds_bos: bool,
    end_of_generation: Set[int],
    controls: Mapping[int, str],
) -> str:
    """``pieces``: every id's part of the text, in order. ``kind``: llama.cpp's number for the kind of tokenizer."""
    digest = sha256()
    for piece in pieces:
        digest.update(len(piece).to_bytes(4, "little") + piece)
    digest.update(repr((kind, bos, adds_bos, sorted(end_of_generation), dict(sorted(controls.items())))).encode())
    return digest.hexdigest()[:16]
