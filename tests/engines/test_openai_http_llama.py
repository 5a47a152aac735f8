"""Real server processes, and streams that move between them and the engine in this process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from actors.engines.base import Engine
from actors.engines.factory import make_engine
from actors.engines.models import fetch
from serve_app.core.errors import EndpointUnavailable
from serve_app.core.model import (
    ContinuesBy,
    FinishReason,
    GenerationRequest,
    Handoff,
    Sampling,
    StreamItem,
    TextPrompt,
    TokenChunk,
)
from serve_app.engine_settings import EngineSettings, LlamaCppEngineSettings
from tests.engines.openai_support import QUESTION, chunks_of, read, request, started, text_of, until
from tests.engines.real_servers import MODEL, TEMPLATE, llama_cpp_server, llama_server
from tests.engines.server_process import PATIENT, ServerProcess
from tests.support.local_service import local_service

pytestmark = pytest.mark.llama

KEY = "sk-for-this-test"
#: What it makes of the question, written out by hand.
RENDERED = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n"
)
SHORT = Sampling(max_tokens=12, temperature=0.0)


def settings(template: Path, **fields: Any) -> dict[str, Any]:
    fixed = {"model": MODEL, "continues_by": "completion", "context_length": 1024, "chat_template": str(template)}
    return fixed | PATIENT | fields


@pytest.fixture(scope="module", autouse=True)
def _model() -> None:
    fetch(MODEL, print)


@dataclass(frozen=True, slots=True)
class Kind:
    """unaided: how it continues where its template is not known. departure: what its log says of a reader who left."""

    start: Callable[[Path], AbstractContextManager[ServerProcess]]
    unaided: ContinuesBy
    departure: bytes


KINDS = {
    "llama-cpp-python": Kind(llama_server, ContinuesBy.NO, b"Disconnected from client"),
    "llama-server": Kind(llama_cpp_server, ContinuesBy.TEXT, b"cancel task"),
}


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with KINDS[request.param].start(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.node.callspec.params["server"]]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "smollm2.jinja"
    path.write_text(TEMPLATE, "utf-8")
    return path


async def raw(server: ServerProcess, prompt: str, tokens: int) -> str:
    """The server's own greedy continuation of exactly this prompt."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
    async with aiohttp.ClientSession() as session, session.post(f"{server.url}/completions", json=body) as response:
        text: str = (await response.json())["choices"][0]["text"]
        return text


def test_what_the_server_can_do_is_found_out(server: ServerProcess, template: Path, kind: Kind) -> None:
    async def main() -> None:
        for known, expected in ((str(template), ContinuesBy.TEXT), (None, kind.unaided)):
            given = settings(template, continues_by="probe", chat_template=known)
            async with started(server.url, **given) as engine:
                await until(lambda engine=engine: engine._able is not None)  # type: ignore[misc]
                assert engine.info.continues_by is expected
                assert engine.info.context_length == 1024

    asyncio.run(main())


def test_by_its_own_template_and_by_ours_the_server_writes_the_same(server: ServerProcess, template: Path) -> None:
    async def main() -> None:
        async with started(server.url, **settings(template)) as ours:
            first = await read(ours, request(sampling=SHORT))
        async with started(server.url, **settings(template, chat_template=None, continues_by="nothing")) as its_own:
            second = await read(its_own, request(sampling=SHORT))
        assert text_of(first) == text_of(second) == await raw(server, RENDERED, 12)
        for items in (first, second):
            assert chunks_of(items)[-1].finish is FinishReason.LENGTH
            assert sum(chunk.count for chunk in chunks_of(items)) <= 12

    asyncio.run(main())


def test_a_text_cut_anywhere_is_carried_on_as_the_server_itself_would(server: ServerProcess, template: Path) -> None:
    async def main() -> None:
        async with started(server.url, **settings(template)) as engine:
            whole = text_of(await read(engine, request(sampling=SHORT)))
            for cut in (1, 3, 4, 17, len(whole) - 1, len(whole)):
                items = await read(engine, request(handoff=Handoff(whole[:cut], cut), sampling=SHORT))
                assert text_of(items) == await raw(server, RENDERED + whole[:cut], 12)
            items = await read(engine, request(TextPrompt("Once upon a"), Handoff(" time", 1), SHORT))
            assert text_of(items) == await raw(server, "Once upon a time", 12)

    asyncio.run(main())


def test_a_reader_who_leaves_stops_the_server(server: ServerProcess, template: Path, kind: Kind) -> None:
    async def main() -> None:
        async with started(server.url, **settings(template)) as engine:
            long = request(sampling=Sampling(max_tokens=900, temperature=0.0))
            departures = server.log.read_bytes().count(kind.departure)
            async with aclosing(engine.generate(long)) as items:
                async for item in items:
                    if isinstance(item, TokenChunk) and item.index == 3:
                        break
            await until(lambda: server.log.read_bytes().count(kind.departure) > departures)
            # It has one context: as long as it goes on with the first answer, there is none to a second question.
            assert text_of(await read(engine, request(sampling=SHORT)))

    asyncio.run(main())


# --- between the server and the engine in this process --------------------------------------------------------------


class Breaking:
    """An engine that fails after ``tokens`` tokens."""

    def __init__(self, inner: Engine, tokens: int) -> None:
        self._inner = inner
        self._tokens = tokens
        self.start, self.close = inner.start, inner.close

    @property
    def info(self) -> Any:
        return self._inner.info

    async def generate(self, asked: GenerationRequest) -> AsyncGenerator[StreamItem, None]:
        async with aclosing(self._inner.generate(asked)) as items:
            async for item in items:
                if isinstance(item, TokenChunk) and item.index >= self._tokens:
                    raise EndpointUnavailable("broken on purpose")
                yield item


#: A source that ran on would be done before a busy machine had the target's first token.
BREAK = {"mode": "break"}


def dear(endpoint: str) -> dict[str, Any]:
    """Prices that make every stream leave ``endpoint``."""
    prices = {name: {"output_usd_per_mtok": 1000.0 if name == endpoint else 0.1} for name in ("cloud", "phone")}
    return {"endpoints": prices}


async def tell(
    cloud: dict[str, Any],
    live: dict[str, Any],
    make: Callable[[EngineSettings, int, int], Engine] = make_engine,
    on_text: Callable[[str], None] = lambda _: None,
) -> tuple[str, str, list[str], dict[str, Any]]:
    """Texts of the first and of the second endpoint of one stream, their names, and the report."""
    endpoints = {
        "cloud": {"kind": "cloud", "engine": cloud},
        "phone": {
            "kind": "device",
            "engine": {"type": "llama_cpp", "model": MODEL, "context_length": 1024, "n_batch": 1},
        },
    }
    service = await local_service({"endpoints": endpoints}, live, make)
    try:
        asked = service.request(1, 1, 48, prompt=QUESTION, consumption_rate=4.0)
        stream = service.service.open(asked)
        parts: dict[str, str] = {}
        try:
            async for piece in stream:
                parts[piece.endpoint] = parts.get(piece.endpoint, "") + piece.text
                on_text(piece.text)
            (first, one), (second, two) = parts.items()
            return one, two, [first, second], stream.outcome.report
        finally:
            await stream.aclose()
    finally:
        for endpoint in service.endpoints.values():
            await endpoint.replica.close()


def http(server: ServerProcess, template: Path, **fields: Any) -> dict[str, Any]:
    return {"type": "openai_http", "base_url": server.url, **settings(template), **fields}


async def alone(prompt: str, tokens: int) -> str:
    """What the engine in this process makes of the question and ``prompt``, the answer so far."""
    engine = make_engine(LlamaCppEngineSettings(model=MODEL, context_length=1024, n_batch=1), 1, 1)
    await engine.start()
    try:
        asked = request(handoff=Handoff(prompt, 1), sampling=Sampling(max_tokens=tokens, temperature=0.0))
        return "".join(
            chunk.text for chunk in [i async for i in engine.generate(asked)] if isinstance(chunk, TokenChunk)
        )
    finally:
        await engine.close()


@pytest.mark.parametrize("planned", [True, False])
def test_from_the_device_to_the_server(server: ServerProcess, template: Path, planned: bool) -> None:
    def breaking(settings: EngineSettings, slots: int, threads: int) -> Engine:
        engine = make_engine(settings, slots, threads)
        return Breaking(engine, 9) if isinstance(settings, LlamaCppEngineSettings) else engine

    async def main() -> None:
        live = {"policy": {"name": "device-only"}, "migration": BREAK, "prices": dear("phone" if planned else "cloud")}
        make = make_engine if planned else breaking
        one, two, names, report = await tell(http(server, template), live, make)
        assert names == ["phone", "cloud"]
        (move,) = report["migrations"]
        assert (move["outcome"], move["reason"]) == ("completed", "migration" if planned else "rescue")
        assert two == (await raw(server, RENDERED + one, 48 - move["at_token"]))
        assert planned or move["at_token"] == 9

    asyncio.run(main())


def test_from_the_server_to_the_device(server: ServerProcess, template: Path) -> None:
    async def main() -> None:
        live = {"policy": {"name": "cloud-only"}, "migration": BREAK, "prices": dear("cloud")}
        one, two, names, report = await tell(http(server, template), live)
        assert names == ["cloud", "phone"]
        (move,) = report["migrations"]
        assert (move["outcome"], move["reason"]) == ("completed", "migration")
        assert two == await alone(one, 48 - move["at_token"])

    asyncio.run(main())


def test_a_server_that_dies_and_one_that_knows_another_key(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(server: ServerProcess) -> None:
        given = settings(template, api_key_env="SOME_KEY")
        monkeypatch.setenv("SOME_KEY", "sk-another")
        async with started(server.url, **given) as engine:
            await until(lambda: "first answer" not in engine._reason)
            with pytest.raises(EndpointUnavailable, match=r"refuses the key \(HTTP 401\)"):
                _ = engine.info
        monkeypatch.setenv("SOME_KEY", KEY)
        received: list[str] = []

        def kill_after_some(text: str) -> None:
            received.append(text)
            if len(received) == 5:
                os.kill(server.pid, signal.SIGKILL)

        live = {"policy": {"name": "cloud-only"}, "prices": dear("phone")}
        cloud = http(server, template, api_key_env="SOME_KEY")
        one, two, names, report = await tell(cloud, live, on_text=kill_after_some)
        assert names == ["cloud", "phone"]
        assert [leg["outcome"] for leg in report["legs"]][-1] == "completed"
        assert two == await alone(one, 48 - report["migrations"][-1]["at_token"])

    with llama_server(tmp_path, "--api_key", KEY) as running:
        asyncio.run(main(running))
