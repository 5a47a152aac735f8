from __future__ import annotations

import asyncio
from array import array
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.engines.simulated import SimulatedEngine
from actors.engines.vocabulary import detokenise, tokenise
from serve_app.core.errors import EndpointFault, PromptTooLong
from serve_app.core.model import (
    ChatPrompt,
    FinishReason,
    GenerationRequest,
    Handoff,
    Message,
    Receipt,
    Sampling,
    StreamItem,
    TextPrompt,
    TokenChunk,
    TokenPrompt,
)
from serve_app.engine_settings import SimulatedEngineSettings
from tests.support.virtual_loop import run_virtual

PROMPT = ChatPrompt((Message("user", "Tell me about rivers."),))


def request(
    attempt: str = "a",
    *,
    prompt: ChatPrompt | TextPrompt | TokenPrompt = PROMPT,
    max_tokens: int = 1000,
    handoff: Handoff | None = None,
    park: float = 0.0,
) -> GenerationRequest:
    return GenerationRequest(attempt, prompt, Sampling(max_tokens=max_tokens), handoff=handoff, park=park)


def run(engine: SimulatedEngine, asked: GenerationRequest) -> list[tuple[float, StreamItem]]:
    async def main() -> list[tuple[float, StreamItem]]:
        loop = asyncio.get_running_loop()
        return [(loop.time(), item) async for item in engine.generate(asked)]

    return run_virtual(main())


def chunks(stream: list[tuple[float, StreamItem]]) -> list[TokenChunk]:
    return [item for _, item in stream if isinstance(item, TokenChunk)]


def text(stream: list[tuple[float, StreamItem]]) -> str:
    return "".join(chunk.text for chunk in chunks(stream))


def engine(**changes: object) -> SimulatedEngine:
    return SimulatedEngine(SimulatedEngineSettings.model_validate({"output_tokens": (80, 120), **changes}))


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=60))
def test_tokens_give_back_any_text(written: str) -> None:
    assert detokenise(tokenise(written)) == written.encode()


@pytest.mark.parametrize("seed", range(30))
def test_answers_have_whole_characters_and_tokenise_back_to_their_ids(seed: int) -> None:
    answer = chunks(run(engine(seed=seed), request()))
    ids = [token for chunk in answer for token in chunk.token_ids]
    written = "".join(chunk.text for chunk in answer)
    assert "\ufffd" not in written
    assert detokenise(ids).decode() == written
    assert tokenise(written) == ids
    assert 80 <= len(ids) <= 124
    assert any(chunk.open_tokens for chunk in answer), "characters spread over several tokens occur"
    assert answer[-1].finish is FinishReason.STOP


def test_open_tokens_counts_the_bytes_of_the_incomplete_character() -> None:
    ids: list[int] = []
    for chunk in chunks(run(engine(seed=3), request())):
        ids += chunk.token_ids
        whole = detokenise(ids[: len(ids) - chunk.open_tokens])
        assert whole.decode()
        if chunk.open_tokens:
            with pytest.raises(UnicodeDecodeError):
                detokenise(ids).decode()


def test_the_same_seed_gives_the_same_text_on_another_engine_and_another_seed_does_not() -> None:
    first = text(run(engine(seed=1, decode_rate=10), request("x")))
    assert text(run(engine(seed=1, decode_rate=90, jitter=0.3), request("y"))) == first
    other = text(run(engine(seed=2), request("x")))
    assert other != first
    assert text(run(engine(seed=1), request("x", prompt=TextPrompt("other")))) != first


@pytest.mark.parametrize("seed", range(3))
def test_a_handoff_at_any_token_by_ids_or_by_text_continues_the_same_text(seed: int) -> None:
    whole = chunks(run(engine(seed=seed), request()))
    ids = [token for chunk in whole for token in chunk.token_ids]
    written = "".join(chunk.text for chunk in whole)
    shown = ""
    for chunk in whole[:-1]:
        shown += chunk.text
        cut = chunk.index + 1
        packed = Handoff(shown, cut, array("i", ids[:cut]).tobytes())
        assert shown + text(run(engine(seed=seed), request(handoff=packed))) == written
        rolled_back = cut - chunk.open_tokens
        rest = chunks(run(engine(seed=seed), request(handoff=Handoff(shown, rolled_back))))
        assert rest[0].index == rolled_back
        assert [token for piece in rest for token in piece.token_ids] == ids[rolled_back:]


def test_every_token_depends_on_the_whole_prefix() -> None:
    ids = [token for chunk in chunks(run(engine(), request())) for token in chunk.token_ids]
    changed = [*tokenise(" stone"), *ids[1:40]]
    assert changed[0] != ids[0]
    rest = chunks(run(engine(), request(handoff=Handoff("", 40, array("i", changed).tobytes()))))
    assert [token for chunk in rest for token in chunk.token_ids] != ids[40:]


def test_max_tokens_and_the_context_end_a_leg_as_length() -> None:
    short = chunks(run(engine(), request(max_tokens=5)))
    assert (sum(chunk.count for chunk in short), short[-1].finish) == (5, FinishReason.LENGTH)
    prompt = TokenPrompt(tuple(range(60, 110)))
    full = chunks(run(engine(context_length=64), request(prompt=prompt)))
    assert (sum(chunk.count for chunk in full), full[-1].finish) == (14, FinishReason.LENGTH)


def test_a_prompt_that_fills_the_context_is_refused_without_quoting_it() -> None:
    with pytest.raises(PromptTooLong) as refusal:
        run(engine(context_length=16), request(prompt=TextPrompt("canary " * 50)))
    assert "canary" not in str(refusal.value)
    prompt = TokenPrompt(tuple(range(60, 70)))
    with pytest.raises(PromptTooLong):
        run(engine(context_length=16), request(prompt=prompt, handoff=Handoff("x", 6, array("i", [65] * 6).tobytes())))


def test_a_handoff_whose_ids_do_not_fit_its_index_is_a_fault() -> None:
    with pytest.raises(EndpointFault):
        run(engine(), request(handoff=Handoff("x", 6, array("i", [65] * 5).tobytes())))


def test_waits_follow_the_rates_without_drift() -> None:
    prompt = TokenPrompt(tuple(range(60, 160)))
    timed = run(engine(overhead=0.5, prefill_rate=200, decode_rate=20), request(prompt=prompt))
    assert timed[0] == (0.0, Receipt(prompt_tokens=100))
    assert timed[1][0] == pytest.approx(0.5 + 100 / 200 + 1 / 20)
    assert timed[61][0] - timed[1][0] == pytest.approx(60 / 20)
    handed = run(
        engine(overhead=0.5, prefill_rate=200, decode_rate=20),
        request(prompt=prompt, handoff=Handoff("A" * 50, 50, array("i", [65] * 50).tobytes())),
    )
    assert handed[1][0] == pytest.approx(0.5 + 150 / 200 + 1 / 20)


def test_jitter_is_drawn_from_the_seed_and_the_attempt() -> None:
    def times(attempt: str, seed: int = 0) -> list[float]:
        return [at for at, _ in run(engine(jitter=0.5, seed=seed), request(attempt))]

    assert times("a") == times("a")
    assert times("a") != times("b")


def test_a_reader_who_pauses_meets_no_burst() -> None:
    async def main() -> list[float]:
        loop, times = asyncio.get_running_loop(), []
        async for _ in engine(decode_rate=10).generate(request()):
            times.append(loop.time())
            if len(times) == 10:
                await asyncio.sleep(100)
        return times

    times = run_virtual(main())
    later = times[10:]
    assert all(after - before >= 0.1 - 1e-9 for before, after in pairwise(later))


async def cancelled_after(asked: SimulatedEngine, seconds: float, leg: GenerationRequest) -> None:
    async def consume() -> None:
        async for _ in asked.generate(leg):
            pass

    task = asyncio.create_task(consume())
    await asyncio.sleep(seconds)
    task.cancel()
    await asyncio.wait({task})


@pytest.mark.parametrize(
    ("park", "left_at", "back_after", "reused", "first_token"),
    [
        pytest.param(5.0, 0.3, 0.1, 100, 0.7 + 0.05 + 0.1, id="still prefilling: the rest, overhead, one decode"),
        pytest.param(5.0, 0.3, 3.0, 100, 0.05 + 0.1, id="finished meanwhile"),
        pytest.param(5.0, 0.3, 7.0, 0, 0.05 + 1.0 + 0.1, id="expired"),
        pytest.param(0.0, 0.3, 0.1, 0, 0.05 + 1.0 + 0.1, id="not asked to park"),
        pytest.param(5.0, 1.1, 0.1, 100, 0.05 + 0.1, id="left between prefill and first token"),
        pytest.param(5.0, 1.3, 0.1, 100, 0.05 + 0.1, id="left after its first token"),
    ],
)
def test_a_cancelled_prefill_is_parked(
    park: float, left_at: float, back_after: float, reused: int, first_token: float
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        device = engine(overhead=0.05, prefill_rate=100, decode_rate=10)
        prompt = TokenPrompt(tuple(range(60, 160)))
        await cancelled_after(device, left_at, request("loser", prompt=prompt, park=park))
        await asyncio.sleep(back_after)
        returned = loop.time()
        stream = device.generate(request("target", prompt=prompt))
        assert await anext(stream) == Receipt(prompt_tokens=100, reused=reused)
        await anext(stream)
        waited = loop.time() - returned
        finished_at = 1.05
        expected = first_token
        if reused and returned < finished_at:
            expected = (finished_at - returned) + 0.05 + 0.1
        assert waited == pytest.approx(expected)
        await stream.aclose()
        again = device.generate(request("other", prompt=prompt))
        assert await anext(again) == Receipt(prompt_tokens=100, reused=0), "a parked prefill serves once"
        await again.aclose()

    run_virtual(main())
