"""A model folder's vocabulary: the same ids, parts of a text and fingerprint as llama.cpp finds in a GGUF of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from actors.engines.chat_template import ChatTemplate, ControlGuard, Segment
from actors.engines.fingerprint import fingerprint
from actors.engines.model_folder import ModelFolder
from actors.engines.prompt_ids import PromptEncoder
from serve_app.core.model import Prompt

#: Texts of tokens that end an answer in whatever model has them, as llama.cpp knows them. Models declare one or two
#: and were trained on more, and both ends of a handoff must stop at the same ones.
END_MARKS: Final = frozenset(
    {"<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>"}
    | {"<|calls|>", "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>"}
    | {"_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>"}
    | {"<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~[", "<|fim_pad|>", "<fim-pad>"}
    | {"<fim_pad>", "<PAD>", "[PAD]", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>"}
    | {"<REPO>", "<reponame>", "<|file_sep|>"}
)

#: llama.cpp's numbers for the two kinds of tokenizer that are read here.
_SENTENCEPIECE: Final = 1
_BYTE_LEVEL: Final = 2

_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class FolderVocabulary:
    """Safe to use from several threads. Raises ``ValueError`` for a tokenizer of an unknown kind."""

    def __init__(self, folder: ModelFolder) -> None:
        from tokenizers import Tokenizer

        file = folder.path / "tokenizer.json"
        source = file.read_text("utf-8")
        self._reading_controls = Tokenizer.from_str(source)
        self._plain = Tokenizer.from_str(source)
        self._plain.encode_special_tokens = True
        ids: dict[str, int] = self._plain.get_vocab(with_added_tokens=True)
        self.size = max(folder.rows, max(ids.values()) + 1)
        kind = _kind(json.loads(source).get("decoder"), file.name)
        bos = ids.get(folder.special("bos_token") or "")
        eos = ids.get(folder.special("eos_token") or "")
        marks = {ids[mark] for mark in END_MARKS if mark in ids}
        self.end_of_generation = folder.declared_ends | marks | ({eos} if eos is not None else set())
        added = {number: (token.content, token.special) for number, token in _added(self._plain)}
        controls = {number: text for number, (text, special) in added.items() if special}
        controls |= {number: text for text, number in ids.items() if number in marks}
        self._pieces = [b""] * self.size
        for text, number in ids.items():
            if number not in controls:
                self._pieces[number] = text.encode() if number in added else _PIECE[kind](text)
        adds_bos = bos is not None and self._plain.encode("x").ids[:1] == [bos]
        self.fingerprint = fingerprint(
            self._pieces, kind, bos, adds_bos, self.end_of_generation, dict(sorted(controls.items()))
        )
        template: ChatTemplate | None = None
        if folder.chat_template is not None:
            template = ChatTemplate(
                folder.chat_template,
                bos=folder.special("bos_token") or "",
                eos=folder.special("eos_token") or "",
                guard=ControlGuard(controls.values()),
            )
        self._encoder = PromptEncoder(self._tokenize, template, bos if adds_bos else None, self.size)

    def piece(self, token: int) -> bytes:
        """The token's part of the text; empty for control tokens and for rows that no token has."""
        return self._pieces[token]

    def encode(self, prompt: Prompt, continuation: str = "") -> list[int]:
        """See ``PromptEncoder.encode``."""
        return self._encoder.encode(prompt, continuation)

    def _tokenize(self, segments: Iterable[Segment]) -> list[int]:
        ids: list[int] = []
        for segment in segments:
            tokenizer = self._reading_controls if segment.controls else self._plain
            # Lone surrogates can come out of JSON; they have no UTF-8 form.
            text = segment.text.encode("utf-8", errors="replace").decode()
            ids += tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def _added(tokenizer: Any) -> Iterable[tuple[int, Any]]:
    decoder: Mapping[int, Any] = tokenizer.get_added_tokens_decoder()
    return decoder.items()


def _kind(decoder: object, file: str) -> int:
    parts = list(_parts(decoder))
    if any(part.get("type") == "ByteLevel" for part in parts):
        return _BYTE_LEVEL
    if any(part.get("type") == "Replace" and part.get("pattern") == {"String": "▁"} for part in parts):
        return _SENTENCEPIECE
    raise ValueError(
        f"{file} has a decoder that is neither byte-level nor of SentencePiece's kind; serve this model elsewhere "
        "and reach it by the openai_http engine"
    )


def _parts(decoder: object) -> Iterator[Mapping[str, Any]]:
    if isinstance(decoder, dict):
        yield decoder
        for inner in decoder.get("decoders", ()):
            yield from _parts(inner)


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's visible character for each byte: itself where it is printable, else the next one from 256 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + rank): byte for rank, byte in enumerate(hidden)}


_ALPHABET: Final = _byte_alphabet()


def _byte_level_piece(text: str) -> bytes:
    return bytes(_ALPHABET[character] for character in text)


def _sentencepiece_piece(text: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(text)
    return bytes((int(byte[1], 16),)) if byte else text.replace("▁", " ").encode()


_PIECE: Final = {_BYTE_LEVEL: _byte_level_piece, _SENTENCEPIECE: _sentencepiece_piece}
