"""Measuring engines whose speed is known, on virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from actors.engines.base import EngineInfo
from actors.engines.factory import make_engine
from serve_app.cli.measure import STREAMS, Measured, Meter, NotMeasurable, measure
from serve_app.core.errors import EndpointFault, Unsupported
from serve_app.core.model import ChatPrompt, FinishReason, GenerationRequest, Receipt, StreamItem, TokenChunk
from serve_app.engine_settings import SimulatedEngineSettings
from tests.support.virtual_loop import run_virtual

SPEED: dict[str, Any] = {"prefill_rate": 80.0, "decode_rate": 12.5, "overhead": 0.3, "output_tokens": (40, 60)}


class Recorded:
    """The simulated engine, and what it was asked."""

    def __init__(self, **settings: Any) -> None:
        self._engine = make_engine(SimulatedEngineSettings(**SPEED | settings), 1, 1)
        self.start, self.close = self._engine.start, self._engine.close
        self.requests: list[GenerationRequest] = []

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[StreamItem, None]:
        self.requests.append(request)
        async with aclosing(self._engine.generate(request)) as items:
            async for item in items:
                yield item


def measured(engine: Recorded, meter: Meter | None = None) -> Measured:
    steps: list[None] = []
    result = run_virtual(measure(engine, meter, lambda: steps.append(None)))
    assert len(steps) == STREAMS
    assert result.samples == STREAMS - 1
    return result


def test_the_figures_are_those_of_the_engine() -> None:
    result = measured(Recorded())
    assert result.line.slope == pytest.approx(1 / 80.0, rel=1e-6)
    assert result.line.intercept == pytest.approx(0.3 + 1 / 12.5, rel=1e-6)
    assert result.profile.prefill_rate == pytest.approx(80.0, rel=1e-6)
    assert result.profile.decode_rate == pytest.approx(12.5, rel=1e-6)
    assert result.scatter == pytest.approx(0.0, abs=1e-6)
    assert (result.prefill_joules, result.decode_joules) == (None, None)


def test_noise_is_averaged_out_and_reported() -> None:
    result = measured(Recorded(jitter=0.2, seed=3))
    assert result.profile.prefill_rate == pytest.approx(80.0, rel=0.15)
    assert result.profile.decode_rate == pytest.approx(12.5, rel=0.1)
    assert result.scatter > 0.01


def test_streams_that_were_held_up_change_nothing() -> None:
    class HeldUp(Recorded):
        async def generate(self, request: GenerationRequest) -> AsyncGenerator[StreamItem, None]:
            if len(self.requests) % 5 == 0:
                await asyncio.sleep(20.0)
            async with aclosing(super().generate(request)) as items:
                async for item in items:
                    yield item

    result = measured(HeldUp())
    assert result.line.slope == pytest.approx(1 / 80.0, rel=0.05)
    assert result.line.intercept == pytest.approx(0.38, abs=0.05)


def test_time_in_a_queue_is_none_of_the_engine_s() -> None:
    class Queued(Recorded):
        async def generate(self, request: GenerationRequest) -> AsyncGenerator[StreamItem, None]:
            waited = random.Random(len(self.requests)).random()
            await asyncio.sleep(waited)
            async with aclosing(super().generate(request)) as items:
                async for item in items:
                    yield replace(item, queued=waited) if isinstance(item, Receipt) else item

    assert measured(Queued()).line.intercept == pytest.approx(0.38, rel=1e-6)


def test_prompts_differ_from_their_first_word_on_and_have_the_lengths_that_a_line_needs() -> None:
    engine = Recorded()
    measured(engine)
    prompts = [request.prompt for request in engine.requests]
    contents = [prompt.messages[0].content for prompt in prompts if isinstance(prompt, ChatPrompt)]
    assert len({content[:40] for content in contents}) == STREAMS
    words = sorted(len(content.split()) for content in contents)
    assert words[-1] > 10 * words[0]


@pytest.mark.parametrize("context", [192, 256, 1024])
def test_prompts_and_answers_fit_the_context(context: int) -> None:
    result = measured(Recorded(context_length=context))
    assert result.profile.prefill_rate == pytest.approx(80.0, rel=1e-6)


def test_a_context_too_small_to_see_a_prefill_is_refused_by_field() -> None:
    with pytest.raises(NotMeasurable, match=r"engine\.context_length: 128 tokens .* at least 192"):
        measured(Recorded(context_length=128))


def test_a_model_without_a_chat_template_is_given_plain_prompts() -> None:
    class Plain(Recorded):
        async def generate(self, request: GenerationRequest) -> AsyncGenerator[StreamItem, None]:
            if isinstance(request.prompt, ChatPrompt):
                raise Unsupported("no chat template", "messages")
            async with aclosing(super().generate(request)) as items:
                async for item in items:
                    yield item

    assert measured(Plain()).profile.decode_rate == pytest.approx(12.5, rel=1e-6)


class Counted(Recorded):
    """Its receipt does not say how long the prompt is."""

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[StreamItem, None]:
        async with aclosing(super().generate(request)) as items:
            async for item in items:
                yield replace(item, prompt_tokens=None) if isinstance(item, Receipt) else item


def test_where_nobody_counts_a_prompt_its_length_is_estimated() -> None:
    """By bytes, as the router does before it knows better; these words are long for a token each."""
    assert 80.0 < measured(Counted()).profile.prefill_rate < 160.0


@pytest.mark.parametrize(("tokens", "why"), [(0, "without a token"), (1, "too short")])
def test_answers_without_a_decode_are_refused(tokens: int, why: str) -> None:
    class Terse(Recorded):
        async def generate(self, request: GenerationRequest) -> AsyncGenerator[StreamItem, None]:
            yield Receipt(50)
            yield TokenChunk(0, "a", count=tokens, finish=FinishReason.STOP)

    with pytest.raises(NotMeasurable, match=why):
        run_virtual(measure(Terse(), None, lambda: None))


def test_what_the_engine_raises_is_passed_on() -> None:
    class Broken(Recorded):
        async def generate(self, request: GenerationRequest) -> AsyncGenerator[StreamItem, None]:
            yield Receipt(50)
            raise EndpointFault("broken")

    with pytest.raises(EndpointFault, match="broken"):
        run_virtual(measure(Broken(), None, lambda: None))


class Machine:
    """Takes 10 W, and ``prefill`` or ``decode`` more while the engine is at that. Joules by virtual time."""

    def __init__(self) -> None:
        self._watts, self._since, self._joules = 10.0, 0.0, 0.0

    def draw(self, watts: float) -> None:
        self._joules, self._since, self._watts = self.joules(), asyncio.get_running_loop().time(), watts

    def joules(self) -> float:
        return self._joules + self._watts * (asyncio.get_running_loop().time() - self._since)


def test_energy_is_what_a_token_takes_above_rest() -> None:
    machine = Machine()

    class Hungry(Recorded):
        async def generate(self, request: GenerationRequest) -> AsyncGenerator[StreamItem, None]:
            machine.draw(10.0 + 40.0)
            async with aclosing(super().generate(request)) as items:
                async for item in items:
                    if isinstance(item, TokenChunk) and item.index == 0:
                        machine.draw(10.0 + 5.0)
                    yield item
            machine.draw(10.0)

    result = measured(Hungry(overhead=0.0), machine)
    assert result.decode_joules == pytest.approx(5.0 / 12.5, rel=1e-6)
    # The first token's decode belongs to the TTFT: a little more than the prefill alone.
    assert result.prefill_joules is not None
    assert 40.0 / 80.0 <= result.prefill_joules <= 40.0 / 80.0 * 1.2


def test_a_machine_that_does_other_things_too_takes_no_negative_energy() -> None:
    machine = Machine()

    class Frugal(Recorded):
        async def generate(self, request: GenerationRequest) -> AsyncGenerator[StreamItem, None]:
            machine.draw(1.0)
            async with aclosing(super().generate(request)) as items:
                async for item in items:
                    yield item

    result = measured(Frugal(), machine)
    assert (result.prefill_joules, result.decode_joules) == (0.0, 0.0)
