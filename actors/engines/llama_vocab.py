"""A GGUF's vocabulary as llama.cpp reads it: text to ids, and each id's part of a text."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterable
from typing import Any, Final

from actors.engines.chat_template import ChatTemplate, ControlGuard, Segment
from actors.engines.fingerprint import fingerprint
from actors.engines.prompt_ids import PromptEncoder
from serve_app.core.errors import EndpointUnavailable
from serve_app.core.model import Prompt

_ATTRIBUTE_UNKNOWN: Final = 1 << 0
_ATTRIBUTE_CONTROL: Final = 1 << 3


class Vocabulary:
    """Safe to use from several threads; refuses to tokenise once closed, when the model may be gone."""

    def __init__(self, api: Any, model: Any) -> None:
        self._api = api
        self._gate = threading.Lock()
        self._closed = False
        self._vocab = vocab = api.llama_model_get_vocab(model)
        self.size: int = api.llama_vocab_n_tokens(vocab)
        self.bos: int | None = _id_or_none(api.llama_vocab_bos(vocab))
        self.adds_bos: bool = self.bos is not None and bool(api.llama_vocab_get_add_bos(vocab))
        self.end_of_generation = frozenset(token for token in range(self.size) if api.llama_vocab_is_eog(vocab, token))
        self._pieces = [self._read_piece(token) for token in range(self.size)]
        controls = {
            token: self._text(token)
            for token in range(self.size)
            if api.llama_vocab_get_attr(vocab, token) & (_ATTRIBUTE_CONTROL | _ATTRIBUTE_UNKNOWN)
        }
        self.fingerprint = fingerprint(
            self._pieces, api.llama_vocab_type(vocab), self.bos, self.adds_bos, self.end_of_generation, controls
        )
        source = api.llama_model_chat_template(model, None)
        template: ChatTemplate | None = None
        if source is not None:
            eos = _id_or_none(api.llama_vocab_eos(vocab))
            template = ChatTemplate(
                source.decode(),
                bos="" if self.bos is None else self._text(self.bos),
                eos="" if eos is None else self._text(eos),
                guard=ControlGuard(controls.values()),
            )
        self._encoder = PromptEncoder(self._tokenize, template, self.bos if self.adds_bos else None, self.size)

    def close(self) -> None:
        with self._gate:
            self._closed = True

    def piece(self, token: int) -> bytes:
        """The token's part of the text; empty for control tokens."""
        return self._pieces[token]

    def encode(self, prompt: Prompt, continuation: str = "") -> list[int]:
        """See ``PromptEncoder.encode``."""
        return self._encoder.encode(prompt, continuation)

    def _tokenize(self, segments: Iterable[Segment]) -> list[int]:
        ids: list[int] = []
        for segment in segments:
            # Lone surrogates can come out of JSON; they have no UTF-8 form.
            data = segment.text.encode("utf-8", errors="replace")
            room = len(data) + 2
            buffer = (ctypes.c_int32 * room)()
            with self._gate:
                if self._closed:
                    raise EndpointUnavailable("the engine was closed")
                count = self._api.llama_tokenize(self._vocab, data, len(data), buffer, room, False, segment.controls)
            if count < 0:
                raise RuntimeError("the tokenizer wanted more room than one token per byte")
            ids += buffer[:count]
        return ids

    def _read_piece(self, token: int) -> bytes:
        buffer = ctypes.create_string_buffer(64)
        length = self._api.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, False)
        if length < 0:
            buffer = ctypes.create_string_buffer(-length)
            length = self._api.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, False)
        return buffer.raw[:length]

    def _text(self, token: int) -> str:
        return str(self._api.llama_vocab_get_text(self._vocab, token).decode(errors="replace"))


def _id_or_none(token: int) -> int | None:
    return None if token < 0 else token
