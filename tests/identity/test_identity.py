"""One GGUF behind both endpoints, greedy: a migration must not change the text.

Evaluated token by token the text is byte for byte that of the run without migration. With normal batches a prefill
rounds differently from a decode, so near-ties may flip; then the text is the accepted tokens followed by what the
target itself continues from exactly those.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from actors.engines.llama_cpp import LlamaCppEngine
from serve_app.core.migration import MigrationMode
from serve_app.core.model import (
    ChatPrompt,
    EndpointKind,
    GenerationRequest,
    Message,
    Prompt,
    Sampling,
    TextPrompt,
)
from serve_app.engine_settings import LlamaCppEngineSettings
from tests.support.forced import EngineEndpoint, alone, stream_with_cut, texts_of

pytestmark = pytest.mark.llama

#: Tokens that the target writes: enough to meet near-ties, few enough for every cut of every prompt.
AFTER = 16
LONGEST_CUT = 64


def greedy(tokens: int) -> Sampling:
    return Sampling(max_tokens=tokens, temperature=0.0)


PROMPTS: dict[str, Prompt] = {
    "story": ChatPrompt((Message("user", "Tell me a short story about a lighthouse keeper and a whale."),)),
    "emoji": TextPrompt("🙂🦊🎈🙂🦊🎈🙂🦊🎈🙂🦊🎈🙂🦊🎈🙂🦊🎈"),
    "cjk": TextPrompt("一二三四五六七八九十 一二三四五六七八九十 一二三四五六七八九十 "),
    "accents": TextPrompt("été, forêt, naïf, cœur, été, forêt, naïf, cœur, été, forêt, naïf, cœur,"),
    "list": ChatPrompt((Message("user", "List ten fruits, one per line, each with its colour."),)),
}


@dataclass(frozen=True)
class Pair:
    """Two engines of the same file, as two endpoints."""

    source: EngineEndpoint
    target: EngineEndpoint


@pytest.fixture(scope="module", params=[1, 512], ids=["token-by-token", "batched"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Pair, int]]:
    settings = LlamaCppEngineSettings(n_batch=request.param, context_length=512)
    engines = [LlamaCppEngine(settings, 1, 1) for _ in range(2)]
    for engine in engines:
        asyncio.run(engine.start())
    yield (
        Pair(
            EngineEndpoint("source", EndpointKind.CLOUD, engines[0]),
            EngineEndpoint("target", EndpointKind.DEVICE, engines[1]),
        ),
        request.param,
    )
    for engine in engines:
        asyncio.run(engine.close())


@pytest.fixture(scope="module")
def references() -> dict[tuple[int, str], list[str]]:
    """Texts without migration, token by token, by n_batch and prompt."""
    return {}


async def forget(endpoint: EngineEndpoint) -> None:
    """Fill the engine's only sequence with something else, so that a handoff finds nothing to reuse."""
    await texts_of(endpoint, alone(TextPrompt("x"), greedy(1), "forget"))


@pytest.mark.parametrize("mode", list(MigrationMode))
def test_a_migration_does_not_change_the_text(
    pair: tuple[Pair, int],
    references: dict[tuple[int, str], list[str]],
    prompt_name: str,
    cut: int,
    mode: MigrationMode,
    record_property: Callable[[str, object], None],
) -> None:
    engines, n_batch = pair
    prompt = PROMPTS[prompt_name]

    async def play() -> None:
        if (n_batch, prompt_name) not in references:
            whole = alone(prompt, greedy(LONGEST_CUT + AFTER))
            references[n_batch, prompt_name] = await texts_of(engines.source, whole)
        reference = "".join(references[n_batch, prompt_name][: cut + AFTER])
        await forget(engines.target)
        engines.target.requests.clear()
        result = await stream_with_cut(engines.source, engines.target, prompt, greedy(cut + AFTER), mode, cut)
        assert result.moved_at == cut
        assert result.by_ids
        record_property("equals_unmigrated", result.text == reference)
        if n_batch == 1:
            assert result.text == reference
            return
        handoff = next(r.handoff for r in engines.target.requests if r.handoff is not None)
        await forget(engines.target)
        own = GenerationRequest("own", prompt, greedy(AFTER), handoff)
        assert result.text == handoff.text + "".join(await texts_of(engines.target, own))

    asyncio.run(play())
