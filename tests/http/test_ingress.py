from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from serve_app.access_settings import AccessSettings
from serve_app.core import errors
from serve_app.core.model import ChatPrompt, Message, TextPrompt
from serve_app.streams import EndpointState, Readiness
from tests.http.fakes import (
    CANARY,
    CHAT,
    COMPLETIONS,
    REPORT,
    FakeService,
    body,
    data_of,
    failing,
    hanging,
    make_surface,
    saying,
    serving,
    until,
)
from tests.support.prometheus import value


def test_a_chat_streams_openais_chunks() -> None:
    async def scenario() -> None:
        async with serving() as server:
            chunks = await server.events()

        assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
            {"role": "assistant", "content": "Hello"},
            {"content": " world"},
            {},
        ]
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "stop"]
        assert len({(chunk["id"], chunk["model"], chunk["created"]) for chunk in chunks}) == 1
        assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
        assert not any("usage" in chunk or "disco" in chunk for chunk in chunks)
        assert server.service.running == 0

    asyncio.run(scenario())


def test_usage_and_report_come_last_when_asked_for() -> None:
    async def scenario() -> None:
        async with serving() as server:
            wishes = {"disco": {"report": True}}
            usage = {"stream_options": {"include_usage": True}}

            *others, last = await server.events(**usage, **wishes)
            assert last["choices"] == []
            assert last["usage"] == {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
            assert last["disco"] == REPORT
            assert all(chunk["usage"] is None for chunk in others)

            *others, last = await server.events(**wishes)
            assert last["disco"] == REPORT
            assert "usage" not in last
            assert [chunk["disco"] for chunk in others] == [{"endpoint": "phone"}] * 2

            *_, last = await server.events(**usage)
            assert "disco" not in last

    asyncio.run(scenario())


def test_a_legacy_completion_streams_text() -> None:
    async def scenario() -> None:
        async with serving() as server:
            chunks = await server.events(COMPLETIONS)

        assert [chunk["choices"][0]["text"] for chunk in chunks] == ["Hello", " world", ""]
        assert {chunk["object"] for chunk in chunks} == {"text_completion"}
        assert server.service.requests[0].prompt == TextPrompt("Hi")

    asyncio.run(scenario())


def test_an_answer_without_any_text_is_still_an_answer() -> None:
    async def scenario() -> None:
        async with serving(FakeService(saying())) as server:
            (chunk,) = await server.events()
            assert chunk["choices"][0]["delta"] == {"role": "assistant", "content": ""}
            assert chunk["choices"][0]["finish_reason"] == "stop"
            whole = (await server.ask()).json()
            assert whole["choices"][0]["message"]["content"] == ""

    asyncio.run(scenario())


@pytest.mark.parametrize(("path", "prefix"), [(CHAT, "chatcmpl-"), (COMPLETIONS, "cmpl-")])
def test_a_whole_answer(path: str, prefix: str) -> None:
    async def scenario() -> None:
        async with serving(FakeService(finish="length")) as server:
            response = await server.ask(path, disco={"report": True})

        answer = response.json()
        (choice,) = answer["choices"]
        assert (choice.get("text") or choice["message"]["content"]) == "Hello world"
        assert choice["finish_reason"] == "length"
        assert answer["id"].startswith(prefix)
        assert answer["usage"]["total_tokens"] == 7
        assert answer["disco"] == REPORT

    asyncio.run(scenario())


@pytest.mark.parametrize("stream", [True, False])
def test_headers(stream: bool) -> None:
    async def scenario() -> None:
        async with serving() as server:
            response = await server.ask(stream=stream, headers={"x-request-id": "mine-1"}, top_k=3, min_p=0.1)

        assert response.headers["x-disco-policy"] == "disco-d"
        assert response.headers["x-disco-ignored"] == "top_k,min_p"
        if stream:
            assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert response.headers["cache-control"] == "no-cache"
            assert response.headers["x-accel-buffering"] == "no"
        assert server.service.requests[0].request_id == "mine-1"

    asyncio.run(scenario())


def test_ids_of_answers_are_unique_whatever_the_client_calls_its_requests() -> None:
    async def scenario() -> None:
        async with serving() as server:
            answers = [(await server.ask(headers={"x-request-id": "same"})).json() for _ in range(2)]
        assert answers[0]["id"] != answers[1]["id"]

    asyncio.run(scenario())


def test_what_the_client_said_reaches_the_service() -> None:
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=b"}

    async def scenario() -> None:
        async with serving() as server:
            await server.ask(headers=trace | {"baggage": CANARY})
            await server.ask(headers={"traceparent": "0" * 600})

        first, second = server.service.requests
        assert first.prompt == ChatPrompt((Message("user", "Hi"),))
        assert first.trace == trace
        assert second.trace == {}

    asyncio.run(scenario())


# --- failures ---


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.PromptTooLong("too long", "messages"), 400),
        (errors.Overloaded("queues are full", 2.5), 429),
        (errors.EndpointUnavailable("all are gone", "cloud"), 503),
        (errors.EndpointTimeout("no first token", "cloud"), 504),
    ],
)
def test_a_failure_before_the_first_token_is_an_http_error(error: errors.DiscoError, status: int, stream: bool) -> None:
    async def scenario() -> None:
        async with serving(FakeService(failing(error))) as server:
            response = await server.ask(stream=stream)

        told = response.json()["error"]
        assert response.status_code == status
        assert (told["code"], told["message"], told["retryable"]) == (error.code, error.message, error.retryable)
        assert response.headers.get("retry-after") == ("3" if status == 429 else None)
        assert server.service.running == 0

    asyncio.run(scenario())


def test_a_failure_mid_stream_is_one_error_event_and_the_end() -> None:
    async def scenario() -> None:
        script = failing(errors.EndpointUnavailable("all are gone", "cloud"), after=["Hel", "lo"])
        async with serving(FakeService(script)) as server:
            response = await server.ask(stream=True)
            whole = await server.ask(stream=False)

        assert response.status_code == 200
        first, second, last = data_of(response.text)
        assert '"content":"Hel"' in first
        assert '"content":"lo"' in second
        assert '"code":"endpoint_unavailable"' in last
        assert response.text.count("\nid: ") == 2
        assert 'id: 2\ndata: {"error"' in response.text
        assert whole.status_code == 503
        assert server.service.running == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("after", [(), ("Hel",)])
@pytest.mark.parametrize("stream", [True, False])
def test_an_unexpected_exception_is_told_and_logged_without_its_text(
    after: tuple[str, ...], stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with serving(FakeService(failing(ValueError(CANARY), after))) as server:
            response = await server.ask(stream=stream, headers={"x-request-id": "r-9"})
            assert response.status_code == (200 if after and stream else 500)
            assert "internal_error" in response.text
            assert CANARY not in response.text
            assert server.service.running == 0
            assert CANARY not in server.surface.metrics.render().decode()

    with caplog.at_level(logging.DEBUG):
        asyncio.run(scenario())
    (record,) = [record for record in caplog.records if record.name.startswith("serve_app")]
    assert "r-9" in record.getMessage()
    assert "ValueError" in record.getMessage()
    assert "fakes.py" in record.getMessage()
    assert CANARY not in caplog.text


def test_an_unknown_model_is_not_found() -> None:
    async def scenario() -> None:
        async with serving() as server:
            response = await server.ask(model=CANARY)
            assert response.status_code == 404
            assert response.json()["error"]["code"] == "model_not_found"
            assert response.json()["error"]["param"] == "model"
            assert CANARY not in response.text
            assert CANARY not in server.surface.metrics.render().decode()

    asyncio.run(scenario())


def test_text_is_in_no_log_metric_or_error(caplog: pytest.LogCaptureFixture) -> None:
    messages = [{"role": "user", "content": CANARY}]

    async def scenario() -> None:
        async with serving(FakeService(saying(CANARY, CANARY))) as server:
            for extra in ({}, {"stream": True}, {"temperature": 9}, {"model": "other"}, {"stop": [CANARY] * 5}):
                response = await server.ask(messages=messages, **extra)
                assert (response.status_code == 200) == (CANARY in response.text)
            await server.client.post(CHAT, content=f"{{{CANARY}")
            assert CANARY not in server.surface.metrics.render().decode()

    with caplog.at_level(logging.DEBUG):
        asyncio.run(scenario())
    ours = [record.getMessage() for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))]
    assert not [line for line in ours if CANARY in line]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("POST", "/v1/nothing", 404, "not_found"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("POST", "/v1/chat/completions/", 404, "not_found"),
        ("GET", "/v1/models/other", 404, "model_not_found"),
    ],
)
def test_wrong_paths_and_methods_get_openais_error(method: str, path: str, status: int, code: str) -> None:
    async def scenario() -> None:
        async with serving() as server:
            response = await server.client.request(method, path)
        assert response.status_code == status
        assert response.json()["error"]["code"] == code

    asyncio.run(scenario())


def test_streams_beyond_the_limit_are_told_to_come_back() -> None:
    async def scenario() -> None:
        async with serving(FakeService(hanging(["Hel"])), router={"max_streams": 2}) as server:
            running = [asyncio.create_task(server.ask(stream=True)) for _ in range(2)]
            await until(lambda: server.service.running == 2)
            assert "disco_streams_running 2.0" in server.surface.metrics.render().decode()

            refused = await server.ask()
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert refused.json()["error"]["type"] == "rate_limit_error"

            for task in running:
                task.cancel()
            await until(lambda: server.service.running == 0)
            server.service.script = saying("Hi")
            assert (await server.ask()).status_code == 200

    asyncio.run(scenario())


# --- access ---


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/v1/models", "/v1/models/disco", "/metrics"])
@pytest.mark.parametrize(
    ("listening_on", "headers"),
    [
        ("0.0.0.0", {}),
        (None, {}),
        ("127.0.0.1", {"host": "evil.com"}),
        ("127.0.0.1", {"origin": "https://evil.com"}),
    ],
)
def test_closed_doors(path: str, listening_on: str | None, headers: dict[str, str]) -> None:
    async def scenario() -> None:
        async with serving(host=listening_on) as server:
            method = "POST" if path in (CHAT, COMPLETIONS) else "GET"
            response = await server.client.request(method, path, json=body(path), headers=headers)
            assert response.status_code == 403
            assert response.json()["error"]["code"] == "access_denied"
            assert not server.service.requests

            assert (await server.client.get("/health")).status_code == 200
            assert (await server.client.get("/ready")).status_code == 200

    asyncio.run(scenario())


def test_an_open_router_serves_everybody() -> None:
    async def scenario() -> None:
        surface = make_surface(host="0.0.0.0", access=AccessSettings(open=True).model_dump())
        async with serving(surface=surface) as server:
            assert (await server.ask(headers={"host": "anything"})).status_code == 200

    asyncio.run(scenario())


# --- the other routes ---


def test_models() -> None:
    async def scenario() -> None:
        async with serving() as server:
            listed = (await server.client.get("/v1/models")).json()
            (model,) = listed["data"]
            assert listed["object"] == "list"
            assert (model["id"], model["object"], type(model["created"])) == ("disco", "model", int)
            assert (await server.client.get("/v1/models/disco")).json() == model

    asyncio.run(scenario())


def test_ready_says_which_endpoint_is_not_and_why() -> None:
    async def scenario() -> None:
        service = FakeService()
        async with serving(service) as server:
            service.state = Readiness(False, {"cloud": EndpointState(False, "loading the model")})
            response = await server.client.get("/ready")
            assert response.status_code == 503
            expected: dict[str, Any] = {"ready": False, "reason": "loading the model"}
            assert response.json() == {"ready": False, "endpoints": {"cloud": expected}}

    asyncio.run(scenario())


def test_metrics_count_what_happened() -> None:
    async def scenario() -> None:
        async with serving() as server:
            await server.ask(stream=True)
            await server.ask()
            await server.ask(temperature=9)
            await server.ask(model="other")
            server.service.script = failing(errors.EndpointUnavailable("gone", "phone"))
            await server.ask()
            text = (await server.client.get("/metrics")).text

        assert value(text, "gen_ai_server_time_to_first_token_seconds_count", gen_ai_request_model="disco") == 2
        assert 'disco_requests_total{code="ok"} 2.0' in text
        assert 'disco_requests_total{code="endpoint_unavailable"} 1.0' in text
        assert 'disco_cost_usd_total{endpoint="phone",kind="device"} 1.5' in text, "what a failure cost counts too"
        assert 'disco_requests_total{code="invalid_request"} 1.0' in text
        assert 'disco_requests_total{code="model_not_found"} 1.0' in text
        assert "disco_streams_running 0.0" in text

    asyncio.run(scenario())
