"""Streams between endpoints whose models cut text differently: no character is lost or shown twice, wherever the cut.

The tokenizers, prompts, detokenizers, session and driver are real; only which ids come next is known beforehand. The
last tests let two real models write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import TypeAlias

import pytest

from actors.engines.detokenizer import Detokenizer
from actors.engines.llama_cpp import LlamaCppEngine
from actors.engines.llama_vocab import Vocabulary
from actors.engines.models import fetch
from serve_app.core.migration import MigrationMode
from serve_app.core.model import EndpointKind, Sampling, TextPrompt
from serve_app.engine_settings import LlamaCppEngineSettings
from tests.support.forced import EngineEndpoint, ForcedMover, Migrated, alone, stream_over, texts_of
from tests.support.scribe import PROMPT, KnownAnswer, OddWriter, PlainWriter, Writer, scribe
from tests.support.texts import ANSWERS

pytestmark = pytest.mark.llama

MODELS = {"byte-pair": "smollm2-135m-instruct", "sentencepiece": "gemma3-270m"}
LIMIT = Sampling(max_tokens=1000, temperature=0.0)
STAY = ForcedMover(MigrationMode.BREAK, None)
#: Answers with many characters that take several bytes.
SPLIT = [name for name, answer in ANSWERS.items() if len(answer.encode()) > 1.4 * len(answer)]

WriterOf: TypeAlias = Callable[[Vocabulary], Writer]


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[str, LlamaCppEngine]]:
    started = {}
    for name, model in MODELS.items():
        fetch(model, print)
        # Token by token, so that what is found in the cache changes no rounding.
        settings = LlamaCppEngineSettings(model=model, context_length=128, n_batch=1)
        started[name] = LlamaCppEngine(settings, 1, 1)
        asyncio.run(started[name].start())
    yield started
    for engine in started.values():
        asyncio.run(engine.close())


@pytest.fixture(scope="module")
def vocabularies(engines: dict[str, LlamaCppEngine]) -> dict[str, Vocabulary]:
    return {name: engine._ready.vocabulary for name, engine in engines.items()}


@dataclass(frozen=True)
class Writing:
    """Endpoints that write the same answer."""

    endpoints: list[EngineEndpoint]
    decoders: list[KnownAnswer]

    @property
    def tokens(self) -> int:
        """In which the first endpoint writes the whole answer."""
        return len(self.decoders[0].rest(0))

    def inside_characters(self) -> list[int]:
        """Tokens of the first endpoint after which a character is open."""
        vocabulary, ids = self.decoders[0].vocabulary, self.decoders[0].rest(0)
        detokenizer = Detokenizer(vocabulary)
        opened = []
        for rank, token in enumerate(ids, start=1):
            detokenizer.push(token)
            if detokenizer.open_tokens:
                opened.append(rank)
        return opened

    def answer(self, text: str) -> None:
        for decoder in self.decoders:
            decoder.answer = text

    async def play(self, mover: ForcedMover, *breaks_after: int) -> Migrated:
        """``breaks_after``: for the first endpoints, tokens after which each fails once."""
        for decoder, tokens in zip(self.decoders, breaks_after, strict=False):
            decoder.breaks_after = tokens
        return await stream_over(self.endpoints, PROMPT, LIMIT, mover)


def writing(*parts: tuple[Vocabulary, Writer]) -> Writing:
    engines = [scribe(vocabulary, write) for vocabulary, write in parts]
    kinds = (EndpointKind.CLOUD, EndpointKind.DEVICE, EndpointKind.DEVICE)
    names = ("source", "target", "third")
    endpoints = [
        EngineEndpoint(name, kind, engine) for name, kind, (engine, _) in zip(names, kinds, engines, strict=False)
    ]
    return Writing(endpoints, [decoder for _, decoder in engines])


@pytest.fixture(scope="module", params=list(MODELS))
def first(request: pytest.FixtureRequest) -> str:
    """Whose vocabulary the stream starts with."""
    return str(request.param)


def three(vocabularies: dict[str, Vocabulary], make: WriterOf, first: str) -> Writing:
    """From one vocabulary to the other one, and a third endpoint with the first one again."""
    (second,) = set(MODELS) - {first}
    writers = {name: make(vocabulary) for name, vocabulary in vocabularies.items()}
    return writing(*((vocabularies[name], writers[name]) for name in (first, second, first)))


@pytest.fixture(scope="module")
def plain(vocabularies: dict[str, Vocabulary], first: str) -> Writing:
    return three(vocabularies, PlainWriter, first)


@pytest.fixture(scope="module")
def odd(vocabularies: dict[str, Vocabulary], first: str) -> Writing:
    return three(vocabularies, OddWriter, first)


def check_the_handoff(result: Migrated, answer: str, cut: int) -> None:
    """The second leg was given whole characters only, as text, and its count goes on from there."""
    leg = result.session.legs[1]
    assert leg.handoff is not None
    assert leg.handoff.packed_ids is None
    assert answer.startswith(leg.handoff.text)
    assert result.moved_at == leg.handoff.next_index <= cut
    assert result.tokens == leg.handoff.next_index + leg.tokens


@pytest.mark.parametrize("name", ANSWERS)
def test_a_source_that_fails_anywhere_costs_no_character(plain: Writing, name: str) -> None:
    answer = ANSWERS[name]
    plain.answer(answer)

    async def play() -> None:
        for cut in range(1, plain.tokens):
            result = await plain.play(STAY, cut)
            assert result.text == answer, cut
            check_the_handoff(result, answer, cut)

    asyncio.run(play())


@pytest.mark.parametrize("name", SPLIT)
def test_nor_does_one_that_fails_inside_a_character(odd: Writing, name: str) -> None:
    answer = ANSWERS[name]
    odd.answer(answer)

    async def play() -> None:
        for cut in odd.inside_characters()[::3]:
            result = await odd.play(STAY, cut)
            assert result.text == answer, cut
            check_the_handoff(result, answer, cut)
            assert result.moved_at is not None
            assert result.moved_at < cut

    asyncio.run(play())


@pytest.mark.parametrize("name", SPLIT)
def test_ids_that_were_left_behind_do_not_come_back(odd: Writing, name: str) -> None:
    """The second endpoint, of another vocabulary, fails at once, and the third one could take ids again."""
    answer = ANSWERS[name]
    odd.answer(answer)

    async def play() -> None:
        for cut in odd.inside_characters()[::3]:
            result = await odd.play(STAY, cut, 0)
            assert result.text == answer, cut
            assert [leg.info.id for leg in result.session.legs] == ["source", "target", "third"]

    asyncio.run(play())


@pytest.mark.parametrize("name", ANSWERS)
def test_planned_moves_wait_for_a_whole_character(plain: Writing, name: str) -> None:
    answer = ANSWERS[name]
    plain.answer(answer)

    async def play() -> None:
        for cut, mode in zip(range(1, plain.tokens, 7), cycle(MigrationMode), strict=False):
            result = await plain.play(ForcedMover(mode, cut, whole=True))
            assert result.text == answer, cut
            if result.moved_at is not None:
                assert result.moved_at >= cut
                check_the_handoff(result, answer, result.moved_at)

    asyncio.run(play())


@pytest.mark.parametrize("name", ["chinese", "joined emoji", "combining marks", "code"])
def test_an_answer_may_go_there_and_back(plain: Writing, name: str) -> None:
    answer = ANSWERS[name]
    plain.answer(answer)

    async def play() -> None:
        for cut in range(1, plain.tokens, 3):
            result = await plain.play(STAY, cut, 2)
            assert result.text == answer, cut
            assert [leg.info.id for leg in result.session.legs][:2] == ["source", "target"]

    asyncio.run(play())


@pytest.mark.parametrize("name", ["emoji without spaces", "rare ideographs", "german"])
def test_equal_vocabularies_exchange_ids_wherever_the_cut(odd: Writing, name: str) -> None:
    answer = ANSWERS[name]
    same = Writing(odd.endpoints[::2], odd.decoders[::2])
    same.answer(answer)
    assert same.endpoints[0].info.vocabulary == same.endpoints[1].info.vocabulary

    async def play() -> None:
        for cut in range(1, same.tokens):
            result = await same.play(STAY, cut)
            assert result.text == answer, cut
            assert (result.by_ids, result.moved_at, result.tokens) == (True, cut, same.tokens)

    asyncio.run(play())


# --- two real models --------------------------------------------------------------------------------------------------

#: Tokens before and after the seam.
BEFORE, AFTER = 4, 4
STORIES = {"emoji": "🙂🦊🎈🙂🦊🎈🙂", "german": "Die Brücke über den"}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_the_target_writes_on_from_the_source_s_text(
    engines: dict[str, LlamaCppEngine], first: str, story: str
) -> None:
    (second,) = set(MODELS) - {first}
    source = EngineEndpoint("source", EndpointKind.CLOUD, engines[first])
    target = EngineEndpoint("target", EndpointKind.DEVICE, engines[second])
    assert source.info.vocabulary != target.info.vocabulary
    prompt, sampling = TextPrompt(story), Sampling(max_tokens=BEFORE + AFTER, temperature=0.0)

    async def play() -> None:
        mover = ForcedMover(MigrationMode.BREAK, BEFORE, whole=True)
        written = await stream_over([source, target], prompt, sampling, mover)
        (_, leg) = written.session.legs
        assert leg.handoff is not None
        assert (written.by_ids, written.tokens) == (False, BEFORE + AFTER)
        assert leg.handoff.text
        # Its own continuation of the text, as if it had been the prompt.
        begun = TextPrompt(story + leg.handoff.text)
        rest = Sampling(max_tokens=BEFORE + AFTER - leg.handoff.next_index, temperature=0.0)
        assert written.text == leg.handoff.text + "".join(await texts_of(target, alone(begun, rest)))

    asyncio.run(play())
