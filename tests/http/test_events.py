"""What happens to a stream, told in its chunks to a client that asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import openai
import pytest

from serve_app.core.errors import EndpointUnavailable
from serve_app.streams import ClientRequest, Delta
from tests.http.fakes import CHAT, COMPLETIONS, FakeService, data_of, failing, serving
from tests.support.local_service import local_service
from tests.support.moving import ENDPOINTS, LIVE
from tests.support.virtual_loop import run_virtual

ADMITTED: Any = {"type": "admitted", "at_s": 0.1, "attempt": "r-0-phone", "queued_s": 0.0}
OVER: Any = {
    "type": "leg_over",
    "at_s": 0.4,
    "attempt": "r-0-phone",
    "outcome": "completed",
    "tokens": 2,
    "error": None,
}


async def eventful(_: ClientRequest) -> AsyncGenerator[Delta, None]:
    yield Delta(0, 0, "", "", (ADMITTED,))
    yield Delta(0, 1, "Hel", "phone")
    yield Delta(1, 1, "lo", "phone", (OVER,))


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("report", [True, False])
def test_events_come_in_the_chunks_and_every_piece_names_who_wrote_it(path: str, report: bool) -> None:
    async def scenario() -> None:
        async with serving(FakeService(eventful)) as server:
            chunks = await server.events(path, disco={"events": True, "report": report})
            assert server.service.requests[0].events
        *pieces, last = chunks
        assert [chunk.get("disco") for chunk in pieces] == [
            {"events": [ADMITTED]},
            {"endpoint": "phone"},
            {"endpoint": "phone", "events": [OVER]},
        ]
        assert ("disco" in last) is report

    asyncio.run(scenario())


def test_who_did_not_ask_is_told_nothing() -> None:
    async def scenario() -> None:
        async with serving() as server:
            assert all("disco" not in chunk for chunk in await server.events())
            assert not server.service.requests[0].events

    asyncio.run(scenario())


def test_only_a_stream_can_tell_what_happens() -> None:
    async def scenario() -> None:
        async with serving() as server:
            response = await server.ask(disco={"events": True})
            error = response.json()["error"]
            assert (response.status_code, error["param"]) == (400, "disco.events")
            assert "stream is true" in error["message"]
            assert not server.service.requests

    asyncio.run(scenario())


def test_a_failure_after_an_event_is_an_error_in_the_stream() -> None:
    async def script(request: ClientRequest) -> AsyncGenerator[Delta, None]:
        yield Delta(0, 0, "", "", (ADMITTED,))
        async for delta in failing(EndpointUnavailable("gone", "phone"))(request):
            yield delta

    async def scenario() -> None:
        async with serving(FakeService(script)) as server:
            response = await server.ask(stream=True, disco={"events": True})
        assert response.status_code == 200
        *_, last = data_of(response.text)
        assert json.loads(last)["error"]["code"] == "endpoint_unavailable"

    asyncio.run(scenario())


def test_the_official_client_reads_the_text_as_ever_and_finds_the_events_if_it_looks() -> None:
    async def scenario() -> None:
        async with serving(FakeService(eventful)) as server:
            url = f"http://127.0.0.1:{server.port}/v1"
            async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
                stream = await client.chat.completions.create(
                    model="disco",
                    messages=[{"role": "user", "content": "Hi"}],
                    stream=True,
                    extra_body={"disco": {"events": True}},
                )
                chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello"
        assert chunks[0].choices[0].delta.role == "assistant"
        extensions = [(chunk.model_extra or {}).get("disco", {}) for chunk in chunks]
        assert [event for disco in extensions for event in disco.get("events", ())] == [ADMITTED, OVER]

    asyncio.run(scenario())


async def read(**fields: Any) -> tuple[list[Delta], list[float], Any]:
    """The stream of a service over replicas; each delta with the second at which it came."""
    local = await local_service({"endpoints": ENDPOINTS}, LIVE)
    loop = asyncio.get_running_loop()
    stream, began = local.service.open(local.request(20, 0, **fields)), loop.time()
    deltas, times = [], []
    try:
        await stream.started()
        times.append(loop.time() - began)
        async for delta in stream:
            deltas.append(delta)
            times.append(loop.time() - began)
    finally:
        await stream.aclose()
    return deltas, times, (stream.outcome.report, local.service._state.budget)


def test_a_real_stream_tells_of_its_race_before_the_first_token_and_of_its_move_before_the_next() -> None:
    deltas, times, (report, budget) = run_virtual(read(events=True))
    assert times[0] == 0.0, "started at once"
    first = next(i for i, delta in enumerate(deltas) if delta.count)
    early = [event["type"] for delta in deltas[:first] for event in delta.events]
    assert early.count("leg") == 2
    assert early[0] == "plan"
    assert "first_token" not in early
    kinds = [event["type"] for delta in deltas for event in delta.events]
    assert [kinds.count(kind) for kind in ("leg", "leg_over", "handoff", "handoff_over")] == [3, 3, 1, 1]
    told = next(i for i, delta in enumerate(deltas) if any(event["type"] == "handoff" for event in delta.events))
    seam = next(i for i, delta in enumerate(deltas) if delta.endpoint == "cloud" and delta.count)
    assert told < seam
    assert times[told + 1] < times[seam + 1]
    assert report["migrations"][0]["outcome"] == "completed"
    assert budget.spent > 0


@pytest.mark.parametrize("delivery", ["eager", "paced"])
def test_the_text_is_the_same_with_and_without_events(delivery: str) -> None:
    told, _, (with_events, spent) = run_virtual(read(events=True, delivery=delivery))
    quiet, _, (without, spent_quietly) = run_virtual(read(delivery=delivery))
    assert "".join(delta.text for delta in told) == "".join(delta.text for delta in quiet)
    assert next(delta.index for delta in told if delta.count) == 0
    assert sum(delta.count for delta in told) == sum(delta.count for delta in quiet) == 120
    assert with_events["ttft_s"] == without["ttft_s"]
    assert with_events["migrations"] == without["migrations"]
    assert (spent.spent, spent.balance) == (spent_quietly.spent, spent_quietly.balance)
    assert all(not delta.events for delta in quiet)
    assert all(delta.count for delta in quiet)
