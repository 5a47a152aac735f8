"""The llama.cpp engine with a known answer in the place of a model: tokenizer, prompt and detokenizer are real.

The answer goes on from whatever of it the evaluated ids end with, so a text that several legs wrote equals the answer
only if each leg was given exactly what had been written before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

from actors.engines.base import EngineInfo
from actors.engines.llama_cpp import LlamaCppEngine, _Loaded
from actors.engines.llama_decoder import Decoder, Job, Started, Token
from actors.engines.llama_vocab import Vocabulary
from serve_app.core.errors import EndpointUnavailable
from serve_app.core.model import FinishReason, TextPrompt
from serve_app.engine_settings import LlamaCppEngineSettings

PROMPT = TextPrompt("Q: What did they write?\nA:")
CONTEXT = 4096

#: Bytes of an odd writer's token, at most.
_LONGEST = 12

#: From a text's bytes, and how many of them are written, to the ids of the rest.
Writer: TypeAlias = Callable[[bytes, int], list[int]]


class PlainWriter:
    """Ids as the tokenizer itself cuts the text. By ids an answer may go on inside a character, by text never."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def __call__(self, answer: bytes, written: int) -> list[int]:
        ids = self._tokenised(answer)
        position = 0
        for rank, token in enumerate(ids):
            if position == written:
                return ids[rank:]
            position += len(self._vocabulary.piece(token))
        return self._tokenised(answer[written:]) if written < len(answer) else []

    def _tokenised(self, text: bytes) -> list[int]:
        ids = self._vocabulary.encode(TextPrompt(text.decode()))
        return ids[1:] if self._vocabulary.adds_bos else ids


class OddWriter:
    """Any ids that spell the bytes, as a model may choose them: many end inside a character.

    Which ones depends on the place in the answer alone, so by ids two of these carry on alike.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._ids = {vocabulary.piece(token): token for token in range(vocabulary.size)}

    def __call__(self, answer: bytes, written: int) -> list[int]:
        ids = []
        while written < len(answer):
            longer = range(written + 1, min(len(answer), written + _LONGEST) + 1)
            ends = [end for end in longer if answer[written:end] in self._ids]
            split = [end for end in ends if _inside(answer, end)]
            choices = split if split and written % 2 else ends
            end = choices[7 * written % len(choices)]
            ids.append(self._ids[answer[written:end]])
            written = end
        return ids


def _inside(text: bytes, position: int) -> bool:
    return position < len(text) and text[position] & 0xC0 == 0x80


class KnownAnswer:
    """In the place of the decode thread. ``breaks_after``: tokens after which the next leg fails; once."""

    def __init__(self, vocabulary: Vocabulary, write: Writer) -> None:
        self.vocabulary = vocabulary
        self._write = write
        self.answer = ""
        self.breaks_after: int | None = None

    def submit(self, job: Job) -> None:
        given = b"".join(map(self.vocabulary.piece, job.ids))
        prompt = PROMPT.text.encode()
        assert (prompt + self.answer.encode()).startswith(given), "not the prompt and a beginning of the answer"
        ids = self.rest(len(given) - len(prompt))
        job.emit(Started(reused=0, queued=0.0))
        limit, self.breaks_after = self.breaks_after, None
        for token in ids[:limit]:
            job.emit(Token(token))
        broken = EndpointUnavailable("broken on purpose")
        job.emit(Token(None, FinishReason.STOP) if limit is None else broken)

    def rest(self, written: int) -> list[int]:
        """The answer's ids after so many bytes."""
        return self._write(self.answer.encode(), written)

    def take(self, job: Job) -> None:
        """Nothing waits for the reader."""

    def abort(self, job: Job) -> None:
        """Everything was said at once."""


def scribe(vocabulary: Vocabulary, write: Writer) -> tuple[LlamaCppEngine, KnownAnswer]:
    decoder = KnownAnswer(vocabulary, write)
    info = EngineInfo("scribe", CONTEXT, vocabulary.fingerprint)
    engine = LlamaCppEngine(LlamaCppEngineSettings(context_length=CONTEXT), 1, 1)
    api: Any = None
    engine._loaded = _Loaded(api, None, vocabulary, cast(Decoder, decoder), info)
    return engine, decoder
