"""The official client, unchanged, against the whole HTTP surface."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest

from serve_app.core import errors
from tests.http.fakes import REPORT, FakeService, Running, failing, saying, serving

HI: Any = [{"role": "user", "content": "Hi"}]


@asynccontextmanager
async def client_of(server: Running) -> AsyncIterator[openai.AsyncOpenAI]:
    http = httpx.AsyncClient(trust_env=False)
    url = f"http://127.0.0.1:{server.port}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="unused", max_retries=0, http_client=http) as client:
        yield client


def test_it_streams_and_gets_usage_and_report() -> None:
    async def scenario() -> None:
        async with serving(FakeService(saying("Grüße", " 👩‍👩‍👧", "\u2028漢"))) as server, client_of(server) as client:
            stream = await client.chat.completions.create(
                model="disco",
                messages=HI,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"disco": {"report": True}},
            )
            chunks = [chunk async for chunk in stream]

        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == "Grüße 👩‍👩‍👧\u2028漢"
        assert chunks[0].choices[0].delta.role == "assistant"
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.total_tokens == 7
        assert chunks[-1].model_extra == {"disco": REPORT}

    asyncio.run(scenario())


def test_it_gets_whole_answers_and_models() -> None:
    async def scenario() -> None:
        async with serving() as server, client_of(server) as client:
            chat = await client.chat.completions.create(model="disco", messages=HI)
            assert chat.choices[0].message.content == "Hello world"
            legacy = await client.completions.create(model="disco", prompt="Hi")
            assert legacy.choices[0].text == "Hello world"
            pieces = await client.completions.create(model="disco", prompt="Hi", stream=True)
            assert "".join([piece.choices[0].text async for piece in pieces]) == "Hello world"
            assert [model.id async for model in client.models.list()] == ["disco"]
            assert (await client.models.retrieve("disco")).id == "disco"

    asyncio.run(scenario())


def test_it_maps_our_errors_to_its_own() -> None:
    async def scenario() -> None:
        async with serving() as server, client_of(server) as client:
            with pytest.raises(openai.NotFoundError) as missing:
                await client.chat.completions.create(model="other", messages=HI)
            assert missing.value.code == "model_not_found"
            with pytest.raises(openai.BadRequestError) as bad:
                await client.chat.completions.create(model="disco", messages=HI, n=2)
            assert (bad.value.code, bad.value.param) == ("unsupported_value", "n")
            server.service.script = failing(errors.Overloaded("full"))
            with pytest.raises(openai.RateLimitError):
                await client.chat.completions.create(model="disco", messages=HI, stream=True)

    asyncio.run(scenario())


def test_it_raises_on_an_error_mid_stream() -> None:
    async def scenario() -> None:
        script = failing(errors.EndpointTimeout("no further token", "cloud"), after=["Hel"])
        async with serving(FakeService(script)) as server, client_of(server) as client:
            stream = await client.chat.completions.create(model="disco", messages=HI, stream=True)
            seen: list[str | None] = []

            async def read() -> None:
                async for chunk in stream:
                    seen.append(chunk.choices[0].delta.content)  # noqa: PERF401 - what came before the error counts

            with pytest.raises(openai.APIError) as caught:
                await read()
        assert seen == ["Hel"]
        assert caught.value.code == "endpoint_timeout"

    asyncio.run(scenario())
