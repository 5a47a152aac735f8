"""A deterministic engine without a model: every token is a hash of its whole prefix, every wait a formula."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import NamedTuple

from actors.engines.base import EngineInfo
from actors.engines.vocabulary import CHARACTERS, EOS, MARKS, WORDS, next_bytes, open_bytes, token_bytes, tokenise
from serve_app.core.errors import EndpointFault, PromptTooLong
from serve_app.core.model import (
    ChatPrompt,
    FinishReason,
    GenerationRequest,
    Prompt,
    Receipt,
    StreamItem,
    TextPrompt,
    TokenChunk,
    TokenPrompt,
)
from serve_app.core.text import Utf8Assembler
from serve_app.engine_settings import SimulatedEngineSettings

#: Tokens written together: what is done between two waits finds cold caches and costs several times as much.
_AT_ONCE = 16

_STARTS = tuple(tokenise(unit)[0] for unit in WORDS * 4 + MARKS * 4 + CHARACTERS * 3)


class SimulatedEngine:
    """The text depends on the prompt and ``settings.seed`` alone, whoever produced the tokens so far.

    Prefill costs overhead + (l + n) / R_prefill, decode 1 / R_decode per token. When a stream that
    may park is closed early, its prefill is finished and kept for ``request.park`` seconds; the next request with that
    prompt omits l.
    """

    def __init__(self, settings: SimulatedEngineSettings) -> None:
        self._settings = settings
        self._parked: dict[bytes, _Parked] = {}

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(
            model="simulated",
            context_length=self._settings.context_length,
            vocabulary=f"simulated:{self._settings.vocabulary}",
            can_park=self._settings.can_park,
        )

    async def start(self) -> None:
        """Nothing to load."""

    async def close(self) -> None:
        self._parked.clear()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[StreamItem, None]:
        writer = _Writer(self._settings, prompt_tokens(request.prompt), handed_over(request))
        if len(writer.prompt) + len(writer.answer) >= self._settings.context_length:
            raise PromptTooLong(
                f"{len(writer.prompt) + len(writer.answer)} tokens do not fit a context of "
                f"{self._settings.context_length}; shorten the prompt",
                "messages" if isinstance(request.prompt, ChatPrompt) else "prompt",
            )
        pacemaker = _Pacemaker(self._settings.jitter, f"{self._settings.seed}:{request.attempt_id}")
        parked = self._take_parked(writer.key, pacemaker.due)
        reused = len(writer.prompt) if parked is not None else 0
        yield Receipt(prompt_tokens=len(writer.prompt), reused=reused)

        if parked is not None:
            pacemaker.due = max(pacemaker.due, parked.ready)
        fresh = len(writer.prompt) + len(writer.answer) - reused
        prefilled = False
        try:
            await pacemaker.wait(self._settings.overhead + fresh / self._settings.prefill_rate)
            prefilled = True
            async with aclosing(self._decode(request, writer, pacemaker)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except (asyncio.CancelledError, GeneratorExit):
            if self._settings.can_park and request.park > 0 and request.handoff is None:
                ready = asyncio.get_running_loop().time() if prefilled else pacemaker.due
                self._parked[writer.key] = _Parked(ready, ready + request.park)
            raise

    async def _decode(
        self, request: GenerationRequest, writer: _Writer, pacemaker: _Pacemaker
    ) -> AsyncGenerator[TokenChunk, None]:
        index = request.handoff.next_index if request.handoff else 0
        room = self._settings.context_length - len(writer.prompt) - len(writer.answer)
        written: deque[_Written] = deque()
        for left in range(min(request.sampling.max_tokens, room) - 1, -1, -1):
            await pacemaker.wait(1 / self._settings.decode_rate)
            if not written:
                written.extend(writer.write(min(_AT_ONCE, left + 1)))
            token, text, open_tokens = written.popleft()
            if token == EOS:
                yield TokenChunk(index, "", count=0, open_tokens=open_tokens, finish=FinishReason.STOP)
                return
            finish = None if left else FinishReason.LENGTH
            yield TokenChunk(index, text, (token,), open_tokens=open_tokens, finish=finish)
            index += 1

    def _take_parked(self, key: bytes, now: float) -> _Parked | None:
        self._parked = {kept: parked for kept, parked in self._parked.items() if parked.expires > now}
        return self._parked.pop(key, None)


class _Written(NamedTuple):
    """``open_tokens``: trailing tokens of a character that is not whole yet."""

    token: int
    text: str
    open_tokens: int


@dataclass(frozen=True, slots=True)
class _Parked:
    """A kept prefill: complete at ``ready``, dropped at ``expires``."""

    ready: float
    expires: float


@dataclass(slots=True)
class _Pacemaker:
    """Waits on a schedule, not after the fact: lateness never adds up. A reader who pauses shifts the schedule."""

    jitter: float
    seed: str
    due: float = field(init=False)
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.due = asyncio.get_running_loop().time()
        self._random = random.Random(self.seed)

    async def wait(self, seconds: float) -> None:
        spread = 1 + self.jitter * (2 * self._random.random() - 1)
        now = asyncio.get_running_loop().time()
        self.due = max(self.due + seconds * spread, now)
        await asyncio.sleep(self.due - now)


class _Writer:
    """Chooses tokens. The hash runs along with the answer, so a token costs the same at any length."""

    def __init__(self, settings: SimulatedEngineSettings, prompt: tuple[int, ...], answer: tuple[int, ...]) -> None:
        self.prompt = prompt
        self.answer: list[int] = []
        self._hash = hashlib.blake2b(f"{settings.seed}|".encode(), digest_size=8)
        for token in prompt:
            self._hash.update(_packed(token))
        self.key = self._hash.digest()
        low, high = settings.output_tokens
        self._length = low + int.from_bytes(self.key, "big") % (high - low + 1)
        self._assembler = Utf8Assembler()
        for token in answer:
            self._append(token)

    def write(self, most: int) -> Iterator[_Written]:
        """The next tokens of the answer: ``most`` of them, or fewer and EOS."""
        for _ in range(most):
            token = self._next_token()
            text = "" if token == EOS else self._append(token)
            # Every byte of an incomplete character is a token of its own.
            yield _Written(token, text, self._assembler.pending)
            if token == EOS:
                return

    def _next_token(self) -> int:
        drawn = int.from_bytes(self._hash.copy().digest(), "big")
        if self._assembler.pending and (choices := next_bytes(open_bytes(self.answer))):
            return choices[drawn % len(choices)]
        if len(self.answer) >= self._length:
            return EOS
        return _STARTS[drawn % len(_STARTS)]

    def _append(self, token: int) -> str:
        self.answer.append(token)
        self._hash.update(_packed(token))
        return self._assembler.feed(token_bytes(token))


def _packed(token: int) -> bytes:
    return token.to_bytes(8, "little", signed=True)


def prompt_tokens(prompt: Prompt) -> tuple[int, ...]:
    """The prompt as this engine reads it: a plain transcript that ends where the answer begins."""
    match prompt:
        case TokenPrompt():
            return prompt.token_ids
        case TextPrompt():
            return tuple(tokenise(prompt.text))
        case ChatPrompt():
            turns = "".join(f"{message.role}: {message.content}\n" for message in prompt.messages)
            return tuple(tokenise(f"{turns}assistant:{prompt.prefix}"))


def handed_over(request: GenerationRequest) -> tuple[int, ...]:
    if request.handoff is None:
        return ()
    ids = request.handoff.token_ids
    if ids is None:
        return tuple(tokenise(request.handoff.text))
    if len(ids) != request.handoff.next_index:
        raise EndpointFault(f"a handoff of {len(ids)} ids for token {request.handoff.next_index}")
    return ids
