"""The simulated engine's tokenizer: exact in both directions, so that text and ids continue alike.

One token per known word (with its leading space), per group of up to four other ASCII letters or digits, per other
ASCII character, and per *byte* of anything else: every character beyond ASCII is spread over several tokens. A token's
id is its bytes as a big-endian number, except for the known words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

EOS = 256
_FIRST_WORD = 257

_WORD_LIST = (
    "the a an of and to in on with from over under near after before river stone lamp bridge garden "
    "window letter road cloud storm harbour copper paper engine signal market forest winter summer "
    "morning evening small quiet early late warm cold bright narrow distant careful old new opens "
    "carries follows answers waits returns crosses holds keeps turns reads writes draws measures "
    "remembers slowly again always almost together alone while where because until"
)
WORDS = tuple(f" {word}" for word in _WORD_LIST.split())
MARKS = (".", ",", ";", "?", "!", "\n")
CHARACTERS = tuple("éßñøΩж漢字語€→😀🚀🌍")

_WORD_IDS = {word: _FIRST_WORD + number for number, word in enumerate(WORDS)}
_PIECES = re.compile(r"( [a-z]+)|([A-Za-z0-9]{1,4})|([\x00-\x7f])|([^\x00-\x7f]+)")


def tokenise(text: str) -> list[int]:
    ids: list[int] = []
    for word, group, mark, foreign in _PIECES.findall(text):
        if word in _WORD_IDS:
            ids.append(_WORD_IDS[word])
        elif word:
            ids.append(ord(" "))
            ids.extend(_number(word[at : at + 4]) for at in range(1, len(word), 4))
        elif group or mark:
            ids.append(_number(group or mark))
        else:
            ids.extend(foreign.encode("utf-8", "replace"))
    return ids


def token_bytes(token: int) -> bytes:
    """Empty for an id that no text has."""
    if 0 <= token < EOS:
        return bytes((token,))
    if token < _FIRST_WORD:
        return b""
    if token < _FIRST_WORD + len(WORDS):
        return WORDS[token - _FIRST_WORD].encode()
    return token.to_bytes((token.bit_length() + 7) // 8, "big")


def detokenise(ids: Iterable[int]) -> bytes:
    return b"".join(map(token_bytes, ids))


def open_bytes(ids: Sequence[int]) -> bytes:
    """The trailing bytes that begin a character without completing it."""
    tail = detokenise(ids[-3:])
    for start in range(len(tail) - 1, max(-1, len(tail) - 4), -1):
        lead = tail[start]
        if lead >= 0xC0:
            size = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            return tail[start:] if len(tail) - start < size else b""
    return b""


def next_bytes(opened: bytes) -> list[int]:
    """The ids that lead on from ``opened`` towards a character of ``CHARACTERS``, in order."""
    known = (character.encode() for character in CHARACTERS)
    return sorted({code[len(opened)] for code in known if code.startswith(opened) and len(code) > len(opened)})


def _number(piece: str) -> int:
    return int.from_bytes(piece.encode(), "big")
