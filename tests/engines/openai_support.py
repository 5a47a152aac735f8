"""What the tests of the openai_http engine share: running one against a server, and reading its streams."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from actors.contract import StreamContract
from actors.engines.openai_http import OpenAIHttpEngine
from serve_app.core.model import (
    ChatPrompt,
    GenerationRequest,
    Handoff,
    Message,
    Prompt,
    Receipt,
    Sampling,
    StreamItem,
    TokenChunk,
)
from serve_app.engine_settings import OpenAIHttpEngineSettings

QUESTION = ChatPrompt((Message("user", "Why is the sky blue?"),))
GREEDY = Sampling(max_tokens=200, temperature=0.0)


@asynccontextmanager
async def started(url: str, **settings: Any) -> AsyncIterator[OpenAIHttpEngine]:
    """An engine that has not necessarily found its server yet."""
    chosen = {"model": "fake", "continues_by": "nothing", "warm_up": False} | settings
    engine = OpenAIHttpEngine(OpenAIHttpEngineSettings(base_url=url, **chosen), first_pause=0.01)
    try:
        await engine.start()
        yield engine
    finally:
        await engine.close()


def request(
    prompt: Prompt = QUESTION, handoff: Handoff | None = None, sampling: Sampling = GREEDY, attempt: str = "a"
) -> GenerationRequest:
    return GenerationRequest(attempt, prompt, sampling, handoff)


def packed(text: str, ids: Sequence[int]) -> Handoff:
    return Handoff(text, len(ids), array("i", ids).tobytes())


async def read(engine: OpenAIHttpEngine, asked: GenerationRequest) -> list[StreamItem]:
    """The whole stream, held to its contract."""
    contract = StreamContract(asked.handoff.next_index if asked.handoff else 0)
    items = []
    async with aclosing(engine.generate(asked)) as stream:
        async for item in stream:
            contract.check(item)
            items.append(item)
    contract.close()
    return items


def chunks_of(items: list[StreamItem]) -> list[TokenChunk]:
    assert isinstance(items[0], Receipt)
    return [item for item in items if isinstance(item, TokenChunk)]


def text_of(items: list[StreamItem]) -> str:
    return "".join(chunk.text for chunk in chunks_of(items))


def ids_of(items: list[StreamItem]) -> list[int]:
    return [token for chunk in chunks_of(items) for token in chunk.token_ids]


async def until(condition: Callable[[], object]) -> None:
    """Wait for what other tasks bring about."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - it is no event of this loop's
            await asyncio.sleep(0.002)
