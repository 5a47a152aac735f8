"""A stream's ids to text, whatever tokenizer they belong to."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Protocol


class Pieces(Protocol):
    """A vocabulary, token by token."""

    def piece(self, token: int) -> bytes:
        """The token's part of the text; empty for control tokens."""
        ...


class Detokenizer:
    """Turns a stream's ids into whole characters; what is not UTF-8 becomes U+FFFD, as soon as that is certain.

    A leg that carries on is primed with the accepted ids, so its first text begins where the other leg's ended.
    """

    def __init__(self, vocabulary: Pieces, accepted: Iterable[int] = ()) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.open_tokens = 0
        for token in accepted:
            self.push(token)

    def push(self, token: int) -> str:
        """The text that ``token`` completes. Afterwards ``open_tokens`` trailing tokens wait for a whole character."""
        piece = self._vocabulary.piece(token)
        text = self._decoder.decode(piece)
        pending = len(self._decoder.getstate()[0])
        if pending == 0:
            self.open_tokens = 0
        elif pending <= len(piece):
            self.open_tokens = 1
        else:
            self.open_tokens += 1
        return text
