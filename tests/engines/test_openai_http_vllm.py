"""A real vLLM server process on this machine's CPU, which takes and gives token ids."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import aiohttp
import pytest

from actors.engines.openai_http import OpenAIHttpEngine
from serve_app.core.errors import PromptTooLong
from serve_app.core.model import ChatPrompt, ContinuesBy, FinishReason, Handoff, Message, Receipt, Sampling, TokenChunk
from tests.engines.openai_support import QUESTION, chunks_of, ids_of, packed, read, request, started, text_of, until
from tests.engines.real_servers import MODEL, VLLM_CONTEXT, vllm_server
from tests.engines.server_process import PATIENT, ServerProcess

#: The server's start alone takes minutes on a busy machine.
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

SHORT = Sampling(max_tokens=12, temperature=0.0)
FEW = Sampling(max_tokens=4, temperature=0.0)
#: Made of tokens that end inside characters.
SCRIPTS = "\u6f22\u5b57 \U0001f469\u200d\U0001f467 \u00e9 ok"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with vllm_server(tmp_path_factory.mktemp("vllm")) as process:
        yield process


async def post(server: ServerProcess, path: str, **body: Any) -> Any:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{server.root}/{path}", json={"model": MODEL, **body}) as response,
    ):
        return await response.json()


async def own(server: ServerProcess, ids: list[int], tokens: int) -> tuple[list[int], str]:
    """The server's own greedy continuation of exactly these ids."""
    answer = await post(server, "v1/completions", prompt=ids, max_tokens=tokens, temperature=0, return_token_ids=True)
    choice = answer["choices"][0]
    return choice["token_ids"], choice["text"]


async def question_ids(server: ServerProcess) -> list[int]:
    turns = [{"role": message.role, "content": message.content} for message in QUESTION.messages]
    ids: list[int] = (await post(server, "tokenize", messages=turns))["tokens"]
    return ids


async def ready(engine: OpenAIHttpEngine) -> None:
    await until(lambda: engine._able is not None)


def test_it_proves_to_take_and_give_ids_and_says_how_much_it_holds(server: ServerProcess) -> None:
    async def main() -> None:
        async with started(server.url, model=MODEL, **PATIENT | {"continues_by": "probe"}) as engine:
            await ready(engine)
            assert engine.info.continues_by is ContinuesBy.IDS
            assert engine.info.counts_tokens
            assert engine.info.context_length == VLLM_CONTEXT

    asyncio.run(main())


def test_an_answer_cut_after_any_token_is_carried_on_as_the_server_itself_would(server: ServerProcess) -> None:
    async def main() -> None:
        async with started(server.url, model=MODEL, **PATIENT | {"continues_by": "ids"}) as engine:
            await ready(engine)
            prompt = await question_ids(server)
            items = await read(engine, request(sampling=SHORT))
            ids = ids_of(items)
            assert items[0] == Receipt(len(prompt))
            assert (ids, text_of(items)) == await own(server, prompt, 12)
            assert chunks_of(items)[-1].finish is FinishReason.LENGTH
            for cut in range(1, len(ids)):
                text = "".join(chunk.text for chunk in chunks_of(items)[:cut])
                more = await read(engine, request(handoff=packed(text, ids[:cut]), sampling=SHORT))
                assert (ids_of(more), text_of(more)) == await own(server, prompt + ids[:cut], 12)

    asyncio.run(main())


def test_no_character_is_lost_or_doubled_where_ids_end_inside_it(server: ServerProcess) -> None:
    """The other leg's text has no half character; this one has to write it whole, whatever it makes of it."""

    async def main() -> None:
        async with started(server.url, model=MODEL, **PATIENT | {"continues_by": "ids"}) as engine:
            await ready(engine)
            prompt = await question_ids(server)
            ids = (await post(server, "tokenize", prompt=SCRIPTS, add_special_tokens=False))["tokens"]
            halves = 0
            for cut in range(1, len(ids)):
                said: str = (await post(server, "detokenize", tokens=ids[:cut]))["prompt"]
                text = said.rstrip("\N{REPLACEMENT CHARACTER}")
                halves += said != text
                more = await read(engine, request(handoff=packed(text, ids[:cut]), sampling=FEW))
                again = (await post(server, "tokenize", prompt=text, add_special_tokens=False))["tokens"]
                _, expected = await own(server, prompt + (ids[:cut] if said == text else again), 4)
                assert text_of(more).rstrip("\N{REPLACEMENT CHARACTER}") == expected.rstrip("\N{REPLACEMENT CHARACTER}")
                assert bool(ids_of(more)) is (said == text)
            assert halves >= 3

    asyncio.run(main())


def test_by_a_last_message_it_goes_on_without_a_seam(server: ServerProcess) -> None:
    async def main() -> None:
        async with started(server.url, model=MODEL, **PATIENT | {"continues_by": "prefill"}) as engine:
            await ready(engine)
            prompt = await question_ids(server)
            for so_far in ("The", "The sky", "The sky is blue because of "):
                items = await read(engine, request(handoff=Handoff(so_far, 3), sampling=SHORT))
                given = (await post(server, "tokenize", prompt=so_far, add_special_tokens=False))["tokens"]
                assert text_of(items) == (await own(server, prompt + given, 12))[1]

    asyncio.run(main())


def generated(server: ServerProcess) -> tuple[float, float]:
    """Requests that run, and tokens generated since the start."""
    with urllib.request.urlopen(f"{server.root}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    values = [
        sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"vllm:{name}{{"))
        for name in ("num_requests_running", "generation_tokens_total")
    ]
    return values[0], values[1]


def test_a_reader_who_leaves_stops_the_server_within_steps(server: ServerProcess) -> None:
    async def main() -> None:
        async with started(server.url, model=MODEL, **PATIENT | {"continues_by": "ids"}) as engine:
            await ready(engine)
            long = request(sampling=Sampling(max_tokens=400, temperature=0.0))
            async with aclosing(engine.generate(long)) as items:
                async for item in items:
                    if isinstance(item, TokenChunk) and item.index == 4:
                        break
            _, tokens = generated(server)
            await until(lambda: generated(server)[0] == 0)
            assert generated(server)[1] - tokens <= 4

    asyncio.run(main())


def test_a_prompt_beyond_its_context_is_refused_before_it_is_sent(server: ServerProcess) -> None:
    async def main() -> None:
        async with started(server.url, model=MODEL, **PATIENT | {"continues_by": "ids"}) as engine:
            await ready(engine)
            with pytest.raises(PromptTooLong, match=f"holds {VLLM_CONTEXT}"):
                await read(engine, request(ChatPrompt((Message("user", "word " * VLLM_CONTEXT),))))

    asyncio.run(main())
