"""A real vLLM behind the engine: start, continue, abort, and where a stream ends."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import replace

import pytest

from actors.engines import vllm_engine
from actors.engines.vllm_stream import AHEAD
from serve_app.core.errors import EndpointFault, InvalidRequest, PromptTooLong, Unsupported
from serve_app.core.model import (
    ContinuesBy,
    FinishReason,
    Handoff,
    Prompt,
    Receipt,
    TokenPrompt,
)
from tests.support.reading import EMOJI, STORY, Leg, ask, chat, read
from tests.vllm.conftest import CHUNK, CONTEXT, RunningVllm

pytestmark = pytest.mark.vllm


def packed(ids: Sequence[int], text: str = "") -> Handoff:
    return Handoff(text, len(ids), array("i", ids).tobytes())


def prompt_ids(vllm: RunningVllm, prompt: Prompt) -> list[int]:
    return vllm.engine._running().vocabulary.encode(prompt)


@pytest.fixture(scope="module")
def emoji(vllm: RunningVllm) -> Leg:
    return vllm.run(read(vllm.engine, ask(EMOJI, 24)))


# --- starting and continuing ------------------------------------------------------------------------------------


def test_it_says_what_it_is(vllm: RunningVllm) -> None:
    info = vllm.engine.info
    assert (info.model, info.context_length) == ("smollm2-135m-instruct", CONTEXT)
    assert info.continues_by is ContinuesBy.IDS
    assert info.counts_tokens


def test_a_stream_counts_its_prompt_and_its_text_is_that_of_its_ids(vllm: RunningVllm, emoji: Leg) -> None:
    assert emoji.receipt is not None
    assert emoji.receipt.prompt_tokens == len(prompt_ids(vllm, EMOJI))
    assert len(emoji.ids) == 24
    assert emoji.chunks[-1].finish is FinishReason.LENGTH
    vocabulary = vllm.engine._running().vocabulary
    whole = emoji.ids[: len(emoji.ids) - emoji.chunks[-1].open_tokens]
    assert emoji.text == b"".join(map(vocabulary.piece, whole)).decode()


def test_a_continuation_is_what_vllm_makes_of_exactly_those_ids(vllm: RunningVllm, emoji: Leg) -> None:
    """Also where the cut is inside a character: there the first text is the whole of it."""
    inside = [cut for cut, chunk in enumerate(emoji.chunks, start=1) if chunk.open_tokens]
    assert inside, "the answer has no character of several tokens; ask for another"
    for cut in sorted({1, inside[0], inside[-1], 15}):
        accepted = emoji.ids[:cut]
        handoff = packed(accepted, "".join(chunk.text for chunk in emoji.chunks[:cut]))
        given = TokenPrompt((*prompt_ids(vllm, EMOJI), *accepted))
        continued = vllm.run(read(vllm.engine, ask(EMOJI, 6, handoff)))
        own = vllm.run(read(vllm.engine, ask(given, 6)))
        assert continued.ids == own.ids
        assert continued.chunks[0].index == cut
        assert continued.receipt is not None
        assert continued.receipt.prompt_tokens == len(prompt_ids(vllm, EMOJI))
        vocabulary = vllm.engine._running().vocabulary
        written = b"".join(map(vocabulary.piece, [*accepted, *continued.ids])).decode(errors="ignore")
        assert handoff.text + continued.text == written


def test_by_text_the_prompt_ends_with_exactly_that_text(vllm: RunningVllm) -> None:
    text = "Once upon a time  "
    by_text = vllm.run(read(vllm.engine, ask(STORY, 6, Handoff(text, 5))))
    own = vllm.run(read(vllm.engine, ask(chat("Tell me a short story about a fox.", prefix=text), 6)))
    assert by_text.ids == own.ids
    assert by_text.chunks[0].index == 5


def test_what_the_prefix_cache_holds_is_told(vllm: RunningVllm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_engine, "_RECEIPT_WAIT", 60.0)
    prompt = TokenPrompt(tuple(range(3000, 3200)))
    first = vllm.run(read(vllm.engine, ask(prompt, 3)))
    again = vllm.run(read(vllm.engine, ask(prompt, 3, packed(first.ids))))
    assert first.receipt is not None
    assert again.receipt is not None
    assert first.receipt.reused == 0
    assert 200 - 32 <= again.receipt.reused <= 200


@pytest.mark.parametrize("handoff", [Handoff("ab", 2, array("i", [5]).tobytes()), packed([10**6])])
def test_a_handoff_that_cannot_be_is_a_fault(vllm: RunningVllm, handoff: Handoff) -> None:
    with pytest.raises(EndpointFault):
        vllm.run(read(vllm.engine, ask(STORY, 4, handoff)))


def test_vllms_own_spans_belong_to_the_requests_trace(vllm: RunningVllm) -> None:
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    traced = replace(ask(STORY, 2), trace={"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"})

    async def scenario() -> None:
        await read(vllm.engine, traced)
        while bytes.fromhex(trace_id) not in vllm.traces:  # noqa: ASYNC110 - the collector has threads of its own
            await asyncio.sleep(0.05)

    vllm.run(scenario())


# --- where a stream ends ----------------------------------------------------------------------------------------


def test_the_end_of_an_answer_is_not_a_token(vllm: RunningVllm) -> None:
    leg = vllm.run(read(vllm.engine, ask(chat("What is 2+2? Answer with a number."), 60)))
    assert leg.chunks[-1].finish is FinishReason.STOP
    assert not set(leg.ids) & vllm.engine._running().vocabulary.end_of_generation
    assert "<|" not in leg.text


def test_the_context_bounds_prompt_and_answer(vllm: RunningVllm) -> None:
    with pytest.raises(PromptTooLong) as refused:
        vllm.run(read(vllm.engine, ask(TokenPrompt((100,) * CONTEXT), 1)))
    assert refused.value.param == "prompt"
    with pytest.raises(PromptTooLong) as refused:
        vllm.run(read(vllm.engine, ask(STORY, 1, packed([100] * (CONTEXT - 5)))))
    assert refused.value.param == "messages"
    # Whatever ends an answer is made unlikely enough never to come.
    leg = vllm.run(read(vllm.engine, ask(TokenPrompt((100,) * (CONTEXT - 3)), 1000, frequency_penalty=-2.0)))
    assert leg.chunks[-1].finish is FinishReason.LENGTH
    assert len(leg.ids) == 3


@pytest.mark.parametrize("prompt", [TokenPrompt((10**6,)), TokenPrompt((-1,)), TokenPrompt(())])
def test_prompts_that_cannot_be_evaluated_are_refused(vllm: RunningVllm, prompt: Prompt) -> None:
    with pytest.raises(InvalidRequest) as refused:
        vllm.run(read(vllm.engine, ask(prompt, 1)))
    assert refused.value.param == "prompt"


# --- sampling ---------------------------------------------------------------------------------------------------


def test_seeds_choose_the_text(vllm: RunningVllm) -> None:
    def text(seed: int) -> str:
        return vllm.run(read(vllm.engine, ask(STORY, 10, temperature=1.2, top_p=0.9, seed=seed))).text

    assert text(1) == text(1)
    assert len({text(1), text(-2), text(3)}) > 1


def test_frequency_penalties_cover_the_tokens_of_earlier_legs(vllm: RunningVllm) -> None:
    plain = vllm.run(read(vllm.engine, ask(STORY, 4)))
    often = packed([*plain.ids, *plain.ids[:1] * 40])
    tempted = vllm.run(read(vllm.engine, ask(STORY, 1, often)))
    penalised = vllm.run(read(vllm.engine, ask(STORY, 1, often, frequency_penalty=2.0)))
    assert tempted.ids == plain.ids[:1]
    assert penalised.ids != tempted.ids


def test_a_presence_penalty_on_a_continuation_is_refused_by_name(vllm: RunningVllm) -> None:
    with pytest.raises(Unsupported) as refused:
        vllm.run(read(vllm.engine, ask(STORY, 4, packed([100]), presence_penalty=1.0)))
    assert refused.value.param == "presence_penalty"


# --- streams that end early -------------------------------------------------------------------------------------


def test_an_abort_takes_effect_within_two_decode_steps(vllm: RunningVllm) -> None:
    """Another stream goes on, so that every step is seen."""

    async def scenario() -> list[int]:
        leaving = vllm.engine.generate(ask(STORY, 500, temperature=1.0, seed=3, frequency_penalty=-2.0))
        staying = vllm.engine.generate(ask(EMOJI, 500, temperature=1.0, seed=4, frequency_penalty=-2.0))
        for stream in (leaving, staying):
            assert isinstance(await anext(stream), Receipt)
        for _ in range(5):
            await anext(leaving)
            await anext(staying)
        assert vllm.steps[-1].running == 2
        await leaving.aclose()
        left_at = len(vllm.steps)
        for _ in range(10):
            await anext(staying)
        await staying.aclose()
        return [step.running for step in vllm.steps[left_at:]]

    running = vllm.run(scenario())
    assert running.index(1) <= 2
    assert 2 not in running[running.index(1) :]


def test_an_abort_takes_effect_within_one_chunk_of_a_long_prompt(
    vllm: RunningVllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was evaluated is in the prefix cache, so a second request for the prompt tells how much that was."""
    prompt = TokenPrompt(tuple(range(5000, 6500)))

    async def leaves_after_the_first_chunk() -> int:
        began = len(vllm.steps)
        stream = vllm.engine.generate(ask(prompt, 5))
        assert isinstance(await anext(stream), Receipt)
        while len(vllm.steps) == began:  # noqa: ASYNC110 - the recorder runs in this loop
            await asyncio.sleep(0)
        await stream.aclose()
        return len(vllm.steps) - began

    monkeypatch.setattr(vllm_engine, "_RECEIPT_WAIT", 0.0)
    chunks = vllm.run(leaves_after_the_first_chunk())
    monkeypatch.setattr(vllm_engine, "_RECEIPT_WAIT", 60.0)
    second = vllm.run(read(vllm.engine, ask(prompt, 1)))
    assert second.receipt is not None
    assert chunks * CHUNK <= second.receipt.reused <= (chunks + 1) * CHUNK < 1500


def test_one_that_leaves_while_waiting_is_never_evaluated(vllm: RunningVllm, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = TokenPrompt(tuple(range(7000, 7400)))
    monkeypatch.setattr(vllm_engine, "_RECEIPT_WAIT", 0.0)

    async def scenario() -> None:
        busy = [
            vllm.engine.generate(ask(STORY, 500, temperature=1.0, seed=seed, frequency_penalty=-2.0)) for seed in (5, 6)
        ]
        for stream in busy:
            assert isinstance(await anext(stream), Receipt)
            await anext(stream)
        waiting = vllm.engine.generate(ask(prompt, 5))
        assert isinstance(await anext(waiting), Receipt)
        while vllm.steps[-1].waiting == 0:
            await anext(busy[0])
        await waiting.aclose()
        for stream in busy:
            for _ in range(3):
                await anext(stream)
            await stream.aclose()

    vllm.run(scenario())
    monkeypatch.setattr(vllm_engine, "_RECEIPT_WAIT", 60.0)
    later = vllm.run(read(vllm.engine, ask(prompt, 1)))
    assert later.receipt is not None
    assert later.receipt.reused == 0


def test_a_reader_that_rests_stops_the_generation(vllm: RunningVllm) -> None:
    async def scenario() -> int:
        stream = vllm.engine.generate(ask(STORY, 1500, temperature=1.0, frequency_penalty=-2.0))
        assert isinstance(await anext(stream), Receipt)
        await anext(stream)
        began = len(vllm.steps)
        while not vllm.steps or vllm.steps[-1].running:  # noqa: ASYNC110 - vLLM tells nobody that it rests
            await asyncio.sleep(0.05)
        made = len(vllm.steps) - began
        for _ in range(AHEAD + 20):
            await anext(stream)
        await stream.aclose()
        return made

    assert vllm.run(scenario()) <= AHEAD + 5
