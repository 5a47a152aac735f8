"""How fast an engine is and what its tokens take: streams of several prompt lengths, one after the other."""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from actors.engines.base import Engine
from actors.engines.vocabulary import WORDS
from serve_app.core.errors import Unsupported
from serve_app.core.estimate import PromptEstimator
from serve_app.core.latency import LatencyProfile, LinearTtft
from serve_app.core.model import ChatPrompt, GenerationRequest, Message, Prompt, Receipt, Sampling, TextPrompt
from serve_app.core.observations import ENOUGH_FOR_MEDIAN, EndpointObservations

#: Tokens: prompts between these two, as far as the context allows, and the answer to each.
_SHORTEST, _LONGEST, _ANSWER = 32, 512, 24
#: Lengths, and streams of each. One more goes first and does not count: what it waits for comes once.
_LENGTHS, _REPEATS = 5, 3
STREAMS: Final = 1 + _LENGTHS * _REPEATS
#: Seconds for which the machine's power at rest is looked at.
_REST = 2.0
#: Words of the first prompt, about a token each; the rest of its tokens is what a template adds.
_FIRST_WORDS = 24
_ASKED = "\nGo on with this list of words."

#: Takes part in no fit, as there are observations enough; a prefill too quick to be seen has its rate.
_NOTHING_KNOWN = LatencyProfile(LinearTtft(0.0, 0.0), prefill_rate=1e6, decode_rate=1.0)


class NotMeasurable(Exception):
    """Why not, and the remedy."""


class Meter(Protocol):
    def joules(self) -> float:
        """Since some fixed instant."""
        ...


@dataclass(frozen=True, slots=True)
class Measured:
    """``scatter``: median distance of a TTFT from the line, seconds. Joules are per token; None without a meter."""

    profile: LatencyProfile
    line: LinearTtft
    scatter: float
    samples: int
    prefill_joules: float | None
    decode_joules: float | None


@dataclass(frozen=True, slots=True)
class _Stream:
    """``decoded`` tokens came in the ``seconds`` after the first item with any. Joules above those at rest."""

    prompt_tokens: int
    ttft: float
    decoded: int
    seconds: float
    prefill_joules: float
    decode_joules: float


async def measure(engine: Engine, meter: Meter | None, step: Callable[[], None]) -> Measured:
    """``step`` is called after each of ``STREAMS`` streams. Raises ``NotMeasurable``, or what the engine raises."""
    bench = _Bench(engine, meter)
    await bench.warm_up()
    step()
    lengths = [length for _ in range(_REPEATS) for length in _lengths(engine.info.context_length)]
    streams = []
    for length in lengths:
        streams.append(await bench.stream(length))
        step()
    return _summary(streams, metered=meter is not None)


def _lengths(context: int) -> list[int]:
    longest = min(_LONGEST, context * 4 // 5 - _ANSWER)
    if longest < 3 * _SHORTEST:
        raise NotMeasurable(f"engine.context_length: {context} tokens are too few to see a prefill; give at least 192")
    return [round(length) for length in np.geomspace(_SHORTEST, longest, _LENGTHS)]


class _Bench:
    def __init__(self, engine: Engine, meter: Meter | None) -> None:
        self._engine = engine
        self._meter = meter
        self._watts_at_rest = 0.0
        self._random = random.Random(0)
        self._chats = True
        self._added_tokens = 0
        self._count = 0

    async def warm_up(self) -> None:
        """Learns what the machine takes at rest, whether the engine chats, and what a template adds to a prompt."""
        if self._meter is not None:
            before = self._meter.joules()
            await asyncio.sleep(_REST)
            self._watts_at_rest = (self._meter.joules() - before) / _REST
        try:
            first = await self.stream(_FIRST_WORDS)
        except Unsupported:
            self._chats = False
            first = await self.stream(_FIRST_WORDS)
        self._added_tokens = max(0, first.prompt_tokens - _FIRST_WORDS)

    async def stream(self, length: int) -> _Stream:
        """A prompt of about ``length`` tokens, which no cache knows beyond its template."""
        clock, joules = asyncio.get_running_loop().time, self._joules
        prompt = self._prompt(max(1, length - self._added_tokens))
        prompt_tokens, queued, tokens = PromptEstimator().estimate(prompt), 0.0, 0
        began, at_start = clock(), joules()
        first = last = began
        at_first = at_start
        decoded = 0
        request = GenerationRequest(f"profile-{self._count}", prompt, Sampling(max_tokens=_ANSWER))
        async with aclosing(self._engine.generate(request)) as items:
            async for item in items:
                if isinstance(item, Receipt):
                    prompt_tokens, queued = item.prompt_tokens or prompt_tokens, item.queued
                elif item.count:
                    last = clock()
                    if tokens == 0:
                        first, at_first = last, joules()
                    else:
                        decoded += item.count
                    tokens += item.count
        if tokens == 0:
            raise NotMeasurable("the endpoint answered without a token; try again, or another model")
        ttft, seconds = first - began - queued, last - first
        return _Stream(
            prompt_tokens,
            ttft,
            decoded,
            seconds,
            at_first - at_start - self._watts_at_rest * ttft,
            joules() - at_first - self._watts_at_rest * seconds,
        )

    def _joules(self) -> float:
        return 0.0 if self._meter is None else self._meter.joules()

    def _prompt(self, words: int) -> Prompt:
        self._count += 1
        text = "".join(self._random.choices(WORDS, k=words)).strip() + _ASKED
        return ChatPrompt((Message("user", text),)) if self._chats else TextPrompt(text)


def _summary(streams: list[_Stream], *, metered: bool) -> Measured:
    observations = EndpointObservations(_NOTHING_KNOWN, len(streams))
    longer = [stream for stream in streams if stream.decoded and stream.seconds > 0]
    if len(longer) < ENOUGH_FOR_MEDIAN:
        raise NotMeasurable("the endpoint's answers are too short to see how fast it decodes; try another model")
    for stream in streams:
        observations.first_token(stream.prompt_tokens, stream.ttft)
    for stream in longer:
        observations.decoded(stream.decoded, stream.seconds)
    profile = observations.profile()
    line = profile.ttft
    assert isinstance(line, LinearTtft)
    return Measured(
        profile,
        line,
        scatter=statistics.median(abs(stream.ttft - line.predict(stream.prompt_tokens)) for stream in streams),
        samples=len(streams),
        prefill_joules=_per_token([(s.prefill_joules, s.prompt_tokens) for s in streams]) if metered else None,
        decode_joules=_per_token([(s.decode_joules, s.decoded) for s in longer]) if metered else None,
    )


def _per_token(amounts: list[tuple[float, int]]) -> float:
    """Median, so that what else the machine did for a moment does not count."""
    return max(0.0, statistics.median(joules / tokens for joules, tokens in amounts))
