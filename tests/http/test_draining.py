"""The router shuts down: who is still served, and what the others are told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator

import httpx
import pytest

from serve_app.admission import Admission
from serve_app.core.errors import Draining
from serve_app.streams import ClientRequest, Delta
from tests.http.fakes import FakeService, Running, data_of, hanging, serving, until

AGES = 3600.0


async def asked(server: Running, *, stream: bool) -> asyncio.Task[httpx.Response]:
    """A request that is being served."""
    running = server.service.running
    task = asyncio.create_task(server.ask(stream=stream))
    await until(lambda: server.service.running == running + 1)
    return task


def draining(response: httpx.Response) -> bool:
    error = response.json()["error"]
    return (response.status_code, error["code"], error["retryable"]) == (503, "draining", True)


def test_a_stream_that_ends_in_time_ends_as_ever_while_nobody_new_is_let_in() -> None:
    gate = asyncio.Event()

    async def gated(_: ClientRequest) -> AsyncGenerator[Delta, None]:
        yield Delta(0, 1, "Hel", "phone")
        await gate.wait()
        yield Delta(1, 1, "lo", "phone")

    async def scenario() -> None:
        async with serving(FakeService(gated)) as server:
            streamed, whole = await asked(server, stream=True), await asked(server, stream=False)
            drain = asyncio.create_task(server.surface.desk.admission.drain(AGES))
            await until(lambda: server.surface.desk.admission.draining)
            assert draining(await server.ask(stream=True))
            ready = await server.client.get("/ready")
            assert (ready.status_code, ready.json()["ready"]) == (503, False)
            assert not drain.done()
            gate.set()
            assert data_of((await streamed).text)[-1] == "[DONE]"
            assert (await whole).json()["choices"][0]["message"]["content"] == "Hello"
            await drain

    asyncio.run(scenario())


@pytest.mark.parametrize("after", [(), ("Hel",)])
@pytest.mark.parametrize("stream", [True, False])
def test_what_does_not_end_in_time_is_told_so(after: tuple[str, ...], stream: bool) -> None:
    async def scenario() -> None:
        async with serving(FakeService(hanging(after))) as server:
            admission = server.surface.desk.admission
            task = await asked(server, stream=stream)
            await admission.drain(0.02)
            response = await task
            if stream and after:
                text, error = data_of(response.text)
                assert json.loads(text)["choices"][0]["delta"]["content"] == "Hel"
                assert json.loads(error)["error"]["code"] == "draining"
            else:
                assert draining(response)
            assert (server.service.running, admission.running) == (0, 0)
            metrics = server.surface.metrics.render().decode()
            assert 'disco_requests_total{code="draining"} 1.0' in metrics
            assert 'code="cancelled"' not in metrics

    asyncio.run(scenario())


def test_a_second_drain_leaves_the_first_ones_time() -> None:
    async def scenario() -> None:
        admission = Admission(1)
        first = asyncio.create_task(admission.drain(0.02))
        second = asyncio.create_task(admission.drain(AGES))
        with pytest.raises(Draining):
            async with admission.until_drained():
                await asyncio.Event().wait()
        await asyncio.gather(first, second)

    asyncio.run(scenario())


def test_a_timeout_of_another_is_not_taken_for_the_end_of_the_drain() -> None:
    async def scenario() -> None:
        with pytest.raises(TimeoutError):
            async with Admission(1).until_drained():
                raise TimeoutError

    asyncio.run(scenario())
