"""Streams that move between llama.cpp and vLLM, both running one model: planned moves and failovers, both ways.

The two compute differently, so what is compared is the target's own continuation of the ids that were handed over.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from actors.engines.base import Engine
from actors.engines.llama_cpp import LlamaCppEngine
from serve_app.core.errors import EndpointUnavailable
from serve_app.core.legs import LegReason
from serve_app.core.migration import MigrationMode
from serve_app.core.model import (
    ChatPrompt,
    EndpointKind,
    GenerationRequest,
    Message,
    Sampling,
    StreamItem,
    TextPrompt,
    TokenChunk,
)
from tests.support.forced import EngineEndpoint, stream_with_cut, texts_of
from tests.vllm.conftest import RunningVllm

pytestmark = pytest.mark.vllm

STORY = ChatPrompt((Message("user", "Tell me a short story about a lighthouse keeper and a whale."),))
EMOJI = TextPrompt("🙂🦊🎈🙂🦊🎈🙂🦊🎈🙂🦊🎈🙂🦊🎈🙂🦊🎈")

#: Tokens that the target writes.
AFTER = 10
NEVER = 10**6


class BreakingEndpoint(EngineEndpoint):
    """Dies when it has given ``breaks_after`` tokens."""

    breaks_after = 7

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[StreamItem, None]:
        stream = super().generate(request)
        try:
            async for item in stream:
                yield item
                if isinstance(item, TokenChunk) and item.index + item.count >= self.breaks_after:
                    raise EndpointUnavailable("gone")
        finally:
            await stream.aclose()


@pytest.fixture(params=["llama.cpp to vLLM", "vLLM to llama.cpp"])
def engines(request: pytest.FixtureRequest, vllm: RunningVllm, llama: LlamaCppEngine) -> tuple[Engine, Engine]:
    return (llama, vllm.engine) if request.param == "llama.cpp to vLLM" else (vllm.engine, llama)


async def own_continuation(target: EngineEndpoint, sampling: Sampling) -> str:
    """The text so far, and what the target makes of the same request once more."""
    asked = next(request for request in target.requests if request.handoff is not None)
    assert asked.handoff is not None
    again = GenerationRequest("own", asked.prompt, sampling, asked.handoff)
    return asked.handoff.text + "".join(await texts_of(target, again))


@pytest.mark.parametrize("mode", list(MigrationMode))
@pytest.mark.parametrize(("prompt", "cut"), [(STORY, 12), (EMOJI, 6)], ids=["story", "emoji"])
def test_a_planned_move(
    vllm: RunningVllm,
    engines: tuple[Engine, Engine],
    prompt: ChatPrompt | TextPrompt,
    cut: int,
    mode: MigrationMode,
) -> None:
    source = EngineEndpoint("source", EndpointKind.CLOUD, engines[0])
    target = EngineEndpoint("target", EndpointKind.DEVICE, engines[1])

    async def scenario() -> None:
        greedy = Sampling(cut + AFTER, temperature=0.0)
        result = await stream_with_cut(source, target, prompt, greedy, mode, cut)
        assert result.moved_at == cut
        assert result.by_ids
        assert result.tokens == cut + AFTER
        assert result.text == await own_continuation(target, Sampling(AFTER, temperature=0.0))

    vllm.run(scenario())


def test_a_failover(vllm: RunningVllm, engines: tuple[Engine, Engine]) -> None:
    source = BreakingEndpoint("source", EndpointKind.CLOUD, engines[0])
    target = EngineEndpoint("target", EndpointKind.DEVICE, engines[1])

    async def scenario() -> None:
        greedy = Sampling(source.breaks_after + AFTER, temperature=0.0)
        result = await stream_with_cut(source, target, STORY, greedy, MigrationMode.OVERLAP, NEVER)
        (move,) = result.session.migrations
        assert (move.reason, result.moved_at, result.by_ids) == (LegReason.RESCUE, source.breaks_after, True)
        assert result.text == await own_continuation(target, Sampling(AFTER, temperature=0.0))

    vllm.run(scenario())
