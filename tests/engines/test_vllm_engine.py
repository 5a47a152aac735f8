"""What surrounds vLLM, with a runtime in its place: loading, legs, and a start after its processes died."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from actors.engines import vllm_engine as module
from actors.engines.model_folder import ModelFolder
from actors.engines.vllm_engine import VllmEngine
from actors.engines.vllm_runtime import Runtime, engine_arguments
from actors.engines.vllm_stream import AHEAD, Step
from serve_app.core.errors import EndpointFault, EndpointUnavailable, PromptTooLong
from serve_app.core.model import (
    FinishReason,
    GenerationRequest,
    Handoff,
    Prompt,
    Receipt,
    Sampling,
    StreamItem,
    TextPrompt,
    TokenChunk,
)
from serve_app.engine_settings import VllmEngineSettings

FOLDER = ModelFolder(Path("/models/tiny"), "TinyForCausalLM", 4096, 256, frozenset({0}), {}, None)


class Bytes:
    """Every byte is a token; 0 ends an answer."""

    size = 256
    fingerprint = "bytes"
    end_of_generation = frozenset({0})

    def __init__(self, folder: ModelFolder) -> None:
        self.folder = folder

    def piece(self, token: int) -> bytes:
        return bytes((token,))

    def encode(self, prompt: Prompt, continuation: str = "") -> list[int]:
        assert isinstance(prompt, TextPrompt)
        return list((prompt.text + continuation).encode())


class Scripted:
    """A runtime that continues any input by the rest of ``answer``; ``calls`` are what it was asked."""

    def __init__(self, answer: bytes, finish: FinishReason = FinishReason.STOP, cached: int = 0) -> None:
        self.answer = answer
        self.finish = finish
        self.cached = cached
        self.calls: list[tuple[list[int], dict[str, Any]]] = []
        self.warms_up = True
        self.dead = False
        self.closed = False

    async def generate(
        self, ids: Sequence[int], sampling: Mapping[str, Any], name: str, trace: Mapping[str, str] | None = None
    ) -> AsyncGenerator[Step, None]:
        self.calls.append((list(ids), dict(sampling)))
        if name == "warm-up":
            if not self.warms_up:
                raise EndpointFault("vLLM raised OutOfMemory")
            yield Step((1,), FinishReason.LENGTH)
            return
        done = len(bytes(ids).partition(b">")[2])
        for number in range(done, len(self.answer)):
            await asyncio.sleep(0)
            if self.dead:
                raise EndpointUnavailable("vLLM's engine process died")
            yield Step((self.answer[number],), cached=self.cached)
        yield Step((), self.finish, self.cached)

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "folder_of", lambda model: FOLDER.path)
    monkeypatch.setattr(module, "read_folder", lambda path: FOLDER)
    monkeypatch.setattr(module, "FolderVocabulary", Bytes)


def engine_of(*runtimes: Scripted, **settings: Any) -> VllmEngine:
    left = iter(runtimes)
    return VllmEngine(VllmEngineSettings(**settings), 2, 1, load=lambda *_: next(left))


def ask(prompt: str = ">", handoff: Handoff | None = None, **sampling: Any) -> GenerationRequest:
    return GenerationRequest("r", TextPrompt(prompt), Sampling(**{"max_tokens": 500, **sampling}), handoff)


async def read(
    engine: VllmEngine, request: GenerationRequest, then: Callable[[], None] = lambda: None
) -> tuple[Receipt, list[TokenChunk]]:
    """``then``: called after the receipt."""
    stream = engine.generate(request)
    receipt = await anext(stream)
    assert isinstance(receipt, Receipt)
    then()
    chunks: list[StreamItem] = [item async for item in stream]
    return receipt, [chunk for chunk in chunks if isinstance(chunk, TokenChunk)]


def test_a_leg_counts_its_prompt_and_gives_whole_characters() -> None:
    async def scenario() -> tuple[Receipt, list[TokenChunk]]:
        engine = engine_of(Scripted("aé!".encode(), cached=1))
        await engine.start()
        return await read(engine, ask("ab>"))

    receipt, chunks = asyncio.run(scenario())
    assert (receipt.prompt_tokens, receipt.reused) == (3, 1)
    assert [(chunk.index, chunk.text, chunk.open_tokens, chunk.finish) for chunk in chunks] == [
        (0, "a", 0, None),
        (1, "", 1, None),
        (2, "é", 0, None),
        (3, "!", 0, None),
        (4, "", 0, FinishReason.STOP),
    ]
    assert [chunk.count for chunk in chunks] == [1, 1, 1, 1, 0]


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_continuation_begins_where_the_other_leg_ended(cut: int) -> None:
    answer = "aé!".encode()
    packed = array("i", list(answer[:cut])).tobytes()

    async def scenario() -> tuple[Scripted, list[TokenChunk]]:
        runtime = Scripted(answer)
        engine = engine_of(runtime)
        await engine.start()
        handoff = Handoff(answer[:cut].decode(errors="ignore"), cut, packed)
        return runtime, (await read(engine, ask(handoff=handoff)))[1]

    runtime, chunks = asyncio.run(scenario())
    assert runtime.calls[-1][0] == [*b">", *answer[:cut]]
    assert chunks[0].index == cut
    assert answer[:cut].decode(errors="ignore") + "".join(chunk.text for chunk in chunks) == "aé!"


def test_a_leg_is_bounded_by_its_request_and_by_the_context() -> None:
    async def scenario() -> list[int]:
        runtime = Scripted(b"a")
        engine = engine_of(runtime, context_length=64)
        await engine.start()
        await read(engine, ask(max_tokens=7))
        await read(engine, ask("x" * 59 + ">"))
        with pytest.raises(PromptTooLong) as refused:
            await read(engine, ask("x" * 63 + ">"))
        assert refused.value.param == "prompt"
        return [sampling["max_tokens"] for _, sampling in runtime.calls[1:]]

    assert asyncio.run(scenario()) == [7, 4]


@pytest.mark.parametrize(
    ("sampling", "rests"),
    [
        ({}, True),
        ({"temperature": 0.0, "seed": 1}, True),
        ({"frequency_penalty": 1.0}, True),
        ({"seed": 1}, False),
        ({"presence_penalty": 1.0}, False),
    ],
)
def test_only_what_can_go_on_unchanged_rests_with_its_reader(sampling: dict[str, Any], rests: bool) -> None:
    answer = bytes(range(32, 127)) * 5

    async def scenario() -> list[tuple[list[int], dict[str, Any]]]:
        runtime = Scripted(answer)
        engine = engine_of(runtime)
        await engine.start()
        async with aclosing(engine.generate(ask(max_tokens=450, **sampling))) as items:
            text = ""
            async for item in items:
                for _ in range(2 * AHEAD):
                    await asyncio.sleep(0)
                text += item.text if isinstance(item, TokenChunk) else ""
        assert text.encode() == answer
        return runtime.calls[1:]

    calls = asyncio.run(scenario())
    assert (len(calls) > 1) is rests
    assert [sampling["max_tokens"] + len(ids) for ids, sampling in calls] == [451] * len(calls)


def test_it_is_started_again_when_its_processes_died() -> None:
    async def scenario() -> None:
        first, second = Scripted(b"a" * 3 * AHEAD), Scripted(b"abc")
        engine = engine_of(first, second)
        with pytest.raises(EndpointUnavailable, match="not loaded"):
            _ = engine.info
        await engine.start()
        assert engine.info.vocabulary == "bytes"
        with pytest.raises(EndpointUnavailable, match="died"):
            await read(engine, ask(), then=lambda: setattr(first, "dead", True))
        with pytest.raises(EndpointUnavailable, match="started again"):
            _ = engine.info
        with pytest.raises(EndpointUnavailable, match="started again"):
            await read(engine, ask())
        assert engine._restarting is not None
        await engine._restarting
        assert first.closed
        assert len((await read(engine, ask()))[1]) == 4
        await engine.close()
        assert second.closed

    asyncio.run(scenario())


def test_what_stops_it_from_starting_again_is_kept() -> None:
    async def scenario() -> None:
        runtime = Scripted(b"abc")
        engine = engine_of(runtime)
        await engine.start()
        runtime.dead = True

        def refuse(*_: object) -> Scripted:
            raise EndpointUnavailable("no memory left")

        engine._load_runtime = refuse
        with pytest.raises(EndpointUnavailable, match="started again"):
            _ = engine.info
        assert engine._restarting is not None
        await engine._restarting
        with pytest.raises(EndpointUnavailable, match="no memory left"):
            _ = engine.info
        await engine.close()

    asyncio.run(scenario())


def test_a_warm_up_that_fails_leaves_nothing_running() -> None:
    runtime = Scripted(b"abc")
    runtime.warms_up = False
    with pytest.raises(EndpointFault):
        asyncio.run(engine_of(runtime).start())
    assert runtime.closed


def test_a_start_says_how_far_it_is(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        engine = engine_of(Scripted(b"abc"))
        assert engine.progress == "not started (0 s)"
        await engine.start()
        assert engine.progress == "ready (0 s)"

    caplog.set_level("INFO", module.__name__)
    asyncio.run(scenario())
    assert [record.message.partition(",")[0] for record in caplog.records] == [
        "reading the tokenizer of tiny",
        "starting vLLM with TinyForCausalLM",
        "warming up vLLM",
        "ready",
    ]


def test_a_context_beyond_the_models_is_refused() -> None:
    with pytest.raises(EndpointUnavailable, match=r"engine\.context_length: 8192 .* at most 4096"):
        asyncio.run(engine_of(context_length=8192).start())


@pytest.mark.parametrize("error", [FileNotFoundError("engine.model: nowhere"), ValueError("damaged")])
def test_a_folder_that_is_not_sound_names_the_field(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def refuse(path: Path) -> ModelFolder:
        raise error

    monkeypatch.setattr(module, "read_folder", refuse)
    with pytest.raises(EndpointUnavailable, match=r"engine\.model: (nowhere|damaged)"):
        asyncio.run(engine_of().start())


# --- vLLM's outputs and arguments -------------------------------------------------------------------------------


class Namespace:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


class FakeLlm:
    """Yields ``outputs``: ids, a finish and cached tokens each; an exception is raised."""

    def __init__(self, *outputs: Any) -> None:
        self.outputs = outputs
        self.errored = False
        self.names: list[str] = []
        self.traces: list[Any] = []

    async def generate(self, prompt: Any, params: Any, name: str, trace_headers: Any) -> AsyncGenerator[Any, None]:
        self.names.append(name)
        self.traces.append(trace_headers)
        for output in self.outputs:
            if isinstance(output, Exception):
                raise output
            ids, finish, cached = output
            yield Namespace(outputs=[Namespace(token_ids=ids, finish_reason=finish)], num_cached_tokens=cached)


async def steps_of(llm: FakeLlm) -> list[Step]:
    runtime = Runtime(llm, dict, lambda ids: {"prompt_token_ids": ids})
    return [step async for step in runtime.generate([1, 2], {}, "attempt")]


@pytest.mark.parametrize(
    ("outputs", "steps"),
    [
        ([([5], None, 4), ([6, 0], "stop", 4)], [Step((5,), cached=4), Step((6,), FinishReason.STOP, 4)]),
        ([([0], "stop", None)], [Step((), FinishReason.STOP)]),
        ([([5, 6], "length", 0)], [Step((5, 6), FinishReason.LENGTH)]),
    ],
)
def test_the_id_that_ends_an_answer_is_no_part_of_it(outputs: list[Any], steps: list[Step]) -> None:
    assert asyncio.run(steps_of(FakeLlm(*outputs))) == steps


def test_no_two_requests_share_a_name() -> None:
    llm = FakeLlm(([0], "stop", 0))
    runtime = Runtime(llm, dict, lambda ids: {"prompt_token_ids": ids})

    async def twice() -> None:
        for _ in range(2):
            async for _ in runtime.generate([1], {}, "attempt"):
                pass

    asyncio.run(twice())
    assert len(set(llm.names)) == 2


@pytest.mark.parametrize("traced", [True, False])
def test_a_trace_is_handed_on_only_where_somebody_collects_it(traced: bool) -> None:
    llm = FakeLlm(([0], "stop", 0))
    runtime = Runtime(llm, dict, lambda ids: ids, traced=traced)

    async def once() -> None:
        async for _ in runtime.generate([1], {}, "attempt", {"traceparent": "00-a-b-01"}):
            pass

    asyncio.run(once())
    assert llm.traces == [{"traceparent": "00-a-b-01"} if traced else None]


@pytest.mark.parametrize("output", [ValueError("the prompt: secret"), ([5], "abort", 0)])
def test_what_vllm_raises_is_its_fault_and_quotes_nothing(output: Any) -> None:
    with pytest.raises(EndpointFault) as fault:
        asyncio.run(steps_of(FakeLlm(output)))
    assert "secret" not in fault.value.message


def test_a_dead_process_is_told_from_a_fault() -> None:
    llm = FakeLlm(RuntimeError("EngineCore"))
    llm.errored = True
    with pytest.raises(EndpointUnavailable, match="died"):
        asyncio.run(steps_of(llm))


def test_what_is_left_open_depends_on_the_machine() -> None:
    on_gpu = engine_arguments(VllmEngineSettings(), FOLDER, 4, on_cpu=False)
    on_cpu = engine_arguments(VllmEngineSettings(), FOLDER, 4, on_cpu=True)
    chosen = engine_arguments(
        VllmEngineSettings(kv_cache_gib=0.5, cache_block=64, prefill_chunk=128), FOLDER, 4, on_cpu=True
    )
    left_open = {"kv_cache_memory_bytes", "block_size", "max_num_batched_tokens"}
    assert not left_open & set(on_gpu)
    assert {name: on_cpu[name] for name in sorted(left_open)} == {
        "block_size": 32,
        "kv_cache_memory_bytes": 1 << 30,
        "max_num_batched_tokens": 512,
    }
    assert {chosen[name] for name in left_open} == {64, 1 << 29, 128}
    assert on_gpu["model"] == "/models/tiny"
    assert on_gpu["max_num_seqs"] == 4
