"""A GGUF's vocabulary: text to ids, ids to whole characters, and a fingerprint to compare two of them by."""

from __future__ import annotations

import codecs
import ctypes
import threading
from collections.abc import Iterable
from hashlib import sha256
from typing import Any, Final

from actors.engines.chat_template import ChatTemplate, ControlGuard, Segment
from serve_app.core.errors import EndpointUnavailable, Unsupported
from serve_app.core.model import ChatPrompt, Prompt, TextPrompt, TokenPrompt

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
        self.fingerprint = self._fingerprint(controls)
        source = api.llama_model_chat_template(model, None)
        self._template: ChatTemplate | None = None
        if source is not None:
            eos = _id_or_none(api.llama_vocab_eos(vocab))
            self._template = ChatTemplate(
                source.decode(),
                bos="" if self.bos is None else self._text(self.bos),
                eos="" if eos is None else self._text(eos),
                guard=ControlGuard(controls.values()),
            )

    def close(self) -> None:
        with self._gate:
            self._closed = True

    def piece(self, token: int) -> bytes:
        """The token's part of the text; empty for control tokens."""
        return self._pieces[token]

    def encode(self, prompt: Prompt, continuation: str = "") -> list[int]:
        """Ids of the prompt followed by ``continuation``, joined as text first where the prompt is text.

        BOS comes exactly once where the model wants one. Ids out of range are ``Unsupported``.
        """
        match prompt:
            case ChatPrompt():
                if self._template is None:
                    raise Unsupported("this model has no chat template; send a plain prompt instead", "messages")
                ids = self._tokenize(self._template.render(prompt, continuation))
            case TextPrompt(text):
                ids = self._tokenize([Segment(text + continuation, controls=False)])
            case TokenPrompt(token_ids):
                if not all(0 <= token < self.size for token in token_ids):
                    raise Unsupported(f"a token id is not in this model's vocabulary of {self.size}", "prompt")
                return [*token_ids, *self._tokenize([Segment(continuation, controls=False)])]
        if self.adds_bos and self.bos is not None and ids[:1] != [self.bos]:
            ids.insert(0, self.bos)
        return ids

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

    def _fingerprint(self, controls: dict[int, str]) -> str:
        digest = sha256()
        for piece in self._pieces:
            digest.update(len(piece).to_bytes(4, "little") + piece)
        kind = self._api.llama_vocab_type(self._vocab)
        digest.update(repr((kind, self.bos, self.adds_bos, sorted(self.end_of_generation), controls)).encode())
        return digest.hexdigest()[:16]


class Detokenizer:
    """Turns a stream's ids into whole characters; what is not UTF-8 becomes U+FFFD, as soon as that is certain.

    A leg that carries on is primed with the accepted ids, so its first text begins where the other leg's ended.
    """

    def __init__(self, vocabulary: Vocabulary, accepted: Iterable[int] = ()) -> None:
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


def _id_or_none(token: int) -> int | None:
    return None if token < 0 else token
