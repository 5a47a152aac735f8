"""Every engine that can carry on an answer, to every other: one planned move and one failover each, same model, greedy.

They compute differently, so a text is compared with the target's own continuation of what was handed over: by the
engine asked once more, and for a server that is given text, by the server itself for exactly the rendered text.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack
from itertools import permutations

import pytest

from actors.engines.base import Engine
from actors.engines.llama_cpp import LlamaCppEngine
from actors.engines.openai_http import OpenAIHttpEngine
from serve_app.core.errors import EndpointUnavailable
from serve_app.core.legs import LegReason
from serve_app.core.migration import MigrationMode
from serve_app.core.model import (
    ChatPrompt,
    ContinuesBy,
    EndpointKind,
    GenerationRequest,
    Message,
    Sampling,
    StreamItem,
    TokenChunk,
)
from serve_app.engine_settings import LlamaCppEngineSettings
from tests.engines.openai_support import started, until
from tests.engines.real_servers import MODEL, TEMPLATE, llama_server, vllm_server
from tests.engines.server_process import PATIENT
from tests.support.forced import EngineEndpoint, stream_with_cut, texts_of
from tests.vllm.conftest import RunningVllm

pytestmark = [pytest.mark.vllm, pytest.mark.llama]

STORY = ChatPrompt((Message("user", "Tell me a short story about a lighthouse keeper and a whale."),))
CUT, AFTER = 12, 10
NEVER = 10**6
NAMES = ("llama.cpp", "vLLM", "llama server", "vLLM server")


class BreakingEndpoint(EngineEndpoint):
    """Dies when it has given ``CUT`` tokens."""

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[StreamItem, None]:
        stream = super().generate(request)
        try:
            async for item in stream:
                yield item
                if isinstance(item, TokenChunk) and item.index + item.count >= CUT:
                    raise EndpointUnavailable("gone")
        finally:
            await stream.aclose()


@pytest.fixture(scope="module")
def engines(vllm: RunningVllm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Engine]]:
    """All of them on the event loop to which the vLLM in this process belongs."""
    folder = tmp_path_factory.mktemp("servers")
    template = folder / "smollm2.jinja"
    template.write_text(TEMPLATE, "utf-8")
    for name in ("llama", "vllm"):
        (folder / name).mkdir()
    with llama_server(folder / "llama") as one, vllm_server(folder / "vllm") as two:
        stack = AsyncExitStack()

        async def start() -> dict[str, Engine]:
            llama = LlamaCppEngine(LlamaCppEngineSettings(model=MODEL, context_length=1024, n_batch=1), 2, 1)
            await llama.start()
            stack.push_async_callback(llama.close)
            by_text = {"continues_by": "completion", "chat_template": str(template), "context_length": 1024}
            by_ids = {"continues_by": "ids", "vocabulary": llama.info.vocabulary}
            servers: list[OpenAIHttpEngine] = [
                await stack.enter_async_context(started(url, model=MODEL, **PATIENT | settings))
                for url, settings in ((one.url, by_text), (two.url, by_ids))
            ]
            for server in servers:
                await until(lambda server=server: server._able is not None)  # type: ignore[misc]
            return dict(zip(NAMES, (llama, vllm.engine, *servers), strict=True))

        yield vllm.run(start())
        vllm.run(stack.aclose())


async def own_continuation(target: EngineEndpoint) -> str:
    """The text so far, and what the target makes of the same request once more."""
    (asked,) = [request for request in target.requests if request.handoff is not None]
    assert asked.handoff is not None
    again = GenerationRequest("own", asked.prompt, Sampling(AFTER, temperature=0.0), asked.handoff)
    return asked.handoff.text + "".join(await texts_of(target, again))


@pytest.mark.parametrize("broken", [False, True], ids=["planned", "failover"])
@pytest.mark.parametrize(("source", "target"), [*permutations(NAMES, 2)])
def test_every_pair(vllm: RunningVllm, engines: dict[str, Engine], source: str, target: str, broken: bool) -> None:
    make = BreakingEndpoint if broken else EngineEndpoint
    first = make("source", EndpointKind.CLOUD, engines[source])
    second = EngineEndpoint("target", EndpointKind.DEVICE, engines[target])

    async def scenario() -> None:
        greedy = Sampling(CUT + AFTER, temperature=0.0)
        at = NEVER if broken else CUT
        result = await stream_with_cut(first, second, STORY, greedy, MigrationMode.OVERLAP, at)
        (move,) = result.session.migrations
        assert move.reason is (LegReason.RESCUE if broken else LegReason.MIGRATION)
        assert result.moved_at is not None
        assert result.by_ids == (second.info.continues_by is ContinuesBy.IDS and source != "llama server")
        assert result.text == await own_continuation(second)

    vllm.run(asyncio.wait_for(scenario(), 300))
