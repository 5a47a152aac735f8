"""Starting and carrying on, against a server whose answer shows what it was given."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from actors.engines.openai_http_calls import Capabilities, Continuation
from serve_app.core.errors import EndpointFault, EndpointUnavailable, PromptTooLong, Unsupported
from serve_app.core.model import (
    ChatPrompt,
    ContinuesBy,
    FinishReason,
    Handoff,
    Message,
    Receipt,
    Sampling,
    StreamItem,
    TextPrompt,
    TokenChunk,
    TokenPrompt,
)
from tests.engines.fake_openai import CLOSE, CONTEXT, TEMPLATE, FakeServer, tokenize
from tests.engines.openai_support import QUESTION, chunks_of, ids_of, packed, read, request, started, text_of

TEXT = "1. Naïve  \n\n2. 漢字 👩‍👧 end \n"
PREFILLS = ("prefill", "prefix", "trailing")


@pytest.fixture
def template(tmp_path: Path) -> str:
    path = tmp_path / "chat.jinja"
    path.write_text(TEMPLATE, "utf-8")
    return str(path)


def probed(server: FakeServer, **settings: Any) -> Capabilities:
    async def run() -> Capabilities:
        async with server.running() as url, started(url, continues_by="probe", **settings) as engine:
            assert engine.info.context_length == CONTEXT
            assert engine._able is not None
            return engine._able

    return asyncio.run(run())


# --- what a server proves to know -----------------------------------------------------------------------------------


@pytest.mark.parametrize("trims", [False, True])
@pytest.mark.parametrize(
    ("how", "strict"), [("prefill", False), ("prefix", False), ("trailing", False), ("trailing", True)]
)
def test_a_prefill_is_recognised_by_its_count_of_tokens(how: str, strict: bool, trims: bool) -> None:
    able = probed(FakeServer(continues=[how], strict=strict, trims=trims))
    assert able == Capabilities(Continuation(how), CONTEXT, trims=trims)


@pytest.mark.parametrize(
    "server", [FakeServer(), FakeServer(strict=True), FakeServer(continues=PREFILLS, usage="never")]
)
def test_a_server_that_proves_nothing_can_only_start(server: FakeServer) -> None:
    assert probed(server).continuation is Continuation.NOTHING


def test_ids_are_preferred_to_anything_else() -> None:
    assert probed(FakeServer(ids=True, continues=PREFILLS)).continuation is Continuation.IDS


def test_a_template_counts_only_if_it_renders_what_the_server_renders(template: str, tmp_path: Path) -> None:
    assert probed(FakeServer(), chat_template=template).continuation is Continuation.COMPLETION
    other = tmp_path / "other.jinja"
    other.write_text("{% for message in messages %}{{ message.content }}{% endfor %}", "utf-8")
    assert probed(FakeServer(), chat_template=str(other)).continuation is Continuation.NOTHING
    assert probed(FakeServer(raw=False), chat_template=template).continuation is Continuation.NOTHING


def test_what_is_declared_is_not_probed() -> None:
    server = FakeServer(continues=PREFILLS)

    async def run() -> None:
        async with server.running() as url, started(url, continues_by="trailing") as engine:
            assert engine.info.continues_by is ContinuesBy.TEXT
            assert not engine.info.counts_tokens
            assert engine.info.vocabulary is None

    asyncio.run(run())
    assert server.calls == []


# --- the text at every cut ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("usage", ["end", "always", "never"])
@pytest.mark.parametrize("trims", [False, True])
@pytest.mark.parametrize("how", [*PREFILLS, "completion"])
def test_a_text_cut_anywhere_is_carried_on_without_a_seam(how: str, trims: bool, usage: Any, template: str) -> None:
    server = FakeServer(TEXT, continues=[how], trims=trims, usage=usage)

    async def run(url: str) -> None:
        given = {"chat_template": template} if how == "completion" else {"trims_prefill": trims}
        async with started(url, continues_by=how, **given) as engine:
            for cut in range(len(TEXT) + 1):
                items = await read(engine, request(handoff=Handoff(TEXT[:cut], cut)))
                assert TEXT[:cut] + text_of(items) == TEXT
                assert server.prompts[-1].endswith(TEXT[:cut].rstrip() if trims and how != "completion" else TEXT[:cut])
                assert chunks_of(items)[-1].finish is FinishReason.STOP

    async def main() -> None:
        async with server.running() as url:
            await run(url)

    asyncio.run(main())


def test_ids_are_carried_on_from_every_token_even_inside_a_character() -> None:
    server = FakeServer(TEXT, ids=True)
    whole = tokenize(TEXT)

    async def main() -> None:
        async with server.running() as url, started(url, continues_by="ids") as engine:
            for cut in range(len(whole) + 1):
                text = bytes(whole[:cut]).decode("utf-8", "ignore")
                items = await read(engine, request(handoff=packed(text, whole[:cut])))
                assert text + text_of(items) == TEXT
                if text.encode() == bytes(whole[:cut]):
                    assert server.streamed()[-1]["prompt"][-cut or len(whole) * 9 :] == whole[:cut]
                    assert [*whole[:cut], *ids_of(items)] == whole
                else:
                    assert ids_of(items) == []

    asyncio.run(main())


def test_by_ids_a_text_is_tokenised_again() -> None:
    server = FakeServer(TEXT, ids=True)

    async def main() -> None:
        async with server.running() as url, started(url, continues_by="ids") as engine:
            for cut in range(len(TEXT) + 1):
                items = await read(engine, request(handoff=Handoff(TEXT[:cut], cut)))
                assert TEXT[:cut] + text_of(items) == TEXT

    asyncio.run(main())


@pytest.mark.parametrize("how", ["ids", "completion", "trailing"])
def test_a_beginning_that_the_caller_gave_comes_before_the_answer_so_far(how: str, template: str) -> None:
    server = FakeServer(TEXT, continues=[how], ids=how == "ids")
    begun = ChatPrompt(QUESTION.messages, prefix=TEXT[:5])

    async def main() -> None:
        given = {"chat_template": template} if how == "completion" else {}
        async with server.running() as url, started(url, continues_by=how, **given) as engine:
            assert TEXT[:5] + text_of(await read(engine, request(begun))) == TEXT
            assert TEXT[:9] + text_of(await read(engine, request(begun, Handoff(TEXT[5:9], 4)))) == TEXT

    asyncio.run(main())


@pytest.mark.parametrize("how", ["ids", "nothing"])
def test_a_raw_prompt_is_carried_on_as_it_is(how: str) -> None:
    server = FakeServer(TEXT, ids=how == "ids")

    async def main() -> None:
        async with server.running() as url, started(url, continues_by=how) as engine:
            for cut in range(len(TEXT)):
                items = await read(engine, request(TextPrompt("Q? A:"), Handoff(TEXT[:cut], cut)))
                assert TEXT[:cut] + text_of(items) == TEXT
                assert server.prompts[-1] == f"<s>Q? A:{TEXT[:cut]}"

    asyncio.run(main())


def test_token_ids_as_a_prompt_need_a_server_that_takes_them() -> None:
    prompt = TokenPrompt(tuple(tokenize("Q? A:", bos=True)))

    async def main() -> None:
        async with FakeServer(TEXT, ids=True).running() as url, started(url, continues_by="ids") as engine:
            assert text_of(await read(engine, request(prompt))) == TEXT
            assert TEXT[:7] + text_of(await read(engine, request(prompt, Handoff(TEXT[:7], 7)))) == TEXT
        async with FakeServer(TEXT).running() as url, started(url) as engine:
            with pytest.raises(Unsupported) as refused:
                await read(engine, request(prompt))
            assert refused.value.param == "prompt"

    asyncio.run(main())


def test_a_server_that_can_only_start_is_not_asked_to_carry_on() -> None:
    server = FakeServer(TEXT)

    async def main() -> None:
        async with server.running() as url, started(url) as engine:
            assert engine.info.continues_by is ContinuesBy.NO
            assert text_of(await read(engine, request())) == TEXT
            with pytest.raises(EndpointUnavailable, match="only start an answer"):
                await read(engine, request(handoff=Handoff("It", 1)))

    asyncio.run(main())
    assert len(server.streamed()) == 1


def test_ids_that_are_not_as_many_as_they_should_be_are_refused() -> None:
    async def main() -> None:
        async with FakeServer(ids=True).running() as url, started(url, continues_by="ids") as engine:
            with pytest.raises(EndpointFault, match="not next_index ids"):
                await read(engine, request(handoff=Handoff("It", 3, packed("It", [73, 116]).packed_ids)))

    asyncio.run(main())


# --- counts and limits ----------------------------------------------------------------------------------------------


def test_by_ids_every_count_is_exact_and_the_end_s_token_is_none_of_the_answer() -> None:
    server = FakeServer(TEXT, ids=True)

    async def main() -> None:
        async with server.running() as url, started(url, continues_by="ids") as engine:
            info = engine.info
            assert info.continues_by is ContinuesBy.IDS
            assert info.counts_tokens
            items = await read(engine, request())
            assert items[0] == Receipt(len(server.streamed()[-1]["prompt"]))
            assert ids_of(items) == tokenize(TEXT)
            assert CLOSE not in ids_of(items)
            chunks = chunks_of(items)
            assert all(chunk.count == len(chunk.token_ids) for chunk in chunks)
            # The bytes of a character that is not whole yet are open, the text's own end is not.
            position = 0
            for chunk in chunks[:-1]:
                position += chunk.count
                whole = len(tokenize(TEXT)[:position]) - len(
                    bytes(tokenize(TEXT)[:position]).decode("utf-8", "ignore").encode()
                )
                assert chunk.open_tokens == whole

    asyncio.run(main())


@pytest.mark.parametrize("allowed", [1, 2, 5, 9])
@pytest.mark.parametrize("usage", ["end", "always", "never"])
@pytest.mark.parametrize("by_ids", [True, False])
def test_an_answer_at_its_limit_ends_with_length(allowed: int, usage: Any, by_ids: bool) -> None:
    server = FakeServer("abcdefghij", ids=by_ids, usage=usage)

    async def main() -> None:
        async with server.running() as url, started(url, continues_by="ids" if by_ids else "nothing") as engine:
            items = await read(engine, request(sampling=Sampling(max_tokens=allowed)))
            assert text_of(items) == "abcdefghij"[:allowed]
            assert chunks_of(items)[-1].finish is FinishReason.LENGTH
            assert sum(chunk.count for chunk in chunks_of(items)) == allowed

    asyncio.run(main())


@pytest.mark.parametrize("usage", ["end", "always"])
def test_the_server_s_usage_corrects_a_count_of_pieces(usage: Any) -> None:
    server = FakeServer(TEXT, usage=usage)

    async def main() -> None:
        async with server.running() as url, started(url) as engine:
            first: list[StreamItem] = []
            async with aclosing(engine.generate(request())) as stream:
                async for item in stream:
                    first.append(item)
                    if isinstance(item, TokenChunk) and item.finish is not None:
                        break
            assert first[0] == Receipt(None)
            assert sum(chunk.count for chunk in chunks_of(first)) == len(tokenize(TEXT))
            # What the first one taught about prompts serves the second, though nobody asked for more after its end.
            async with aclosing(engine.generate(request())) as stream:
                receipt = await anext(stream)
            assert isinstance(receipt, Receipt)
            assert receipt.prompt_tokens is not None
            assert abs(receipt.prompt_tokens - len(tokenize(server.prompts[-1]))) <= 1

    asyncio.run(main())


def test_without_usage_every_piece_counts_as_a_token() -> None:
    async def main() -> None:
        async with FakeServer(TEXT, usage="never").running() as url, started(url) as engine:
            items = await read(engine, request())
            assert sum(chunk.count for chunk in chunks_of(items)) == len(TEXT)
            assert (await read(engine, request()))[0] == Receipt(None)

    asyncio.run(main())


def test_by_ids_the_context_bounds_the_answer() -> None:
    server = FakeServer("x" * CONTEXT, ids=True)

    async def main() -> None:
        async with server.running() as url, started(url, continues_by="ids") as engine:
            long = TokenPrompt(tuple(tokenize("." * (CONTEXT - 7) + "A:", bos=True)))
            items = await read(engine, request(long))
            assert text_of(items) == "xxxx"
            assert chunks_of(items)[-1].finish is FinishReason.LENGTH
            too_long = ChatPrompt((Message("user", "." * CONTEXT),))
            with pytest.raises(PromptTooLong, match=f"holds {CONTEXT}") as refused:
                await read(engine, request(too_long))
            assert refused.value.param == "messages"

    asyncio.run(main())


def test_only_the_operator_says_whose_ids_are_the_same() -> None:
    async def vocabulary(url: str, **settings: Any) -> str | None:
        async with started(url, continues_by="ids", **settings) as engine:
            return engine.info.vocabulary

    async def main() -> None:
        async with FakeServer(ids=True).running() as one, FakeServer(ids=True).running() as two:
            assert await vocabulary(one) == await vocabulary(one)
            assert len({await vocabulary(one), await vocabulary(two), await vocabulary(one, model="other")}) == 3
            assert await vocabulary(one, vocabulary="llama3") == "llama3"

    asyncio.run(main())
