"""The engine against servers that misbehave in every way."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import aclosing
from typing import Any

import pytest
from aiohttp import web

from actors.engines.factory import make_engine
from serve_app.core.errors import (
    DiscoError,
    EndpointFault,
    EndpointTimeout,
    EndpointUnavailable,
    Overloaded,
    PromptTooLong,
)
from serve_app.core.model import ChatPrompt, FinishReason, Message, Receipt, Sampling, StreamItem, TokenChunk
from serve_app.engine_settings import OpenAIHttpEngineSettings
from tests.engines.fake_openai import FakeServer
from tests.engines.openai_support import chunks_of, read, request, started, text_of, until
from tests.engines.scripted_http import (
    STOP,
    Act,
    ScriptedServer,
    answer,
    body,
    delta,
    hung_up,
    page,
    refusal,
    silent,
    stream,
)

SECRET = "sk-very-secret-key"
PROMPT = "the secret of the prompt"
SAID = "the secret of the answer"
QUICK = {"retry_seconds": 0.0}


def run(*acts: Act, sampling: Sampling | None = None, **settings: Any) -> tuple[list[StreamItem], ScriptedServer]:
    server = ScriptedServer(list(acts))

    async def main() -> list[StreamItem]:
        async with server.running() as url, started(url, **settings) as engine:
            asked = request(ChatPrompt((Message("user", PROMPT),)), sampling=sampling or Sampling(max_tokens=50))
            return await read(engine, asked)

    return asyncio.run(main()), server


def failure(*acts: Act, **settings: Any) -> tuple[DiscoError, ScriptedServer]:
    server = ScriptedServer(list(acts))

    async def main() -> DiscoError:
        async with server.running() as url, started(url, **settings) as engine:
            with pytest.raises(DiscoError) as raised:
                await read(engine, request(ChatPrompt((Message("user", PROMPT),))))
            return raised.value

    return asyncio.run(main()), server


# --- sound streams of many kinds ------------------------------------------------------------------------------------


def test_text_comes_piece_by_piece_after_the_receipt() -> None:
    items, _ = run(answer("It", " is", " blue."))
    assert items == [
        Receipt(None),
        TokenChunk(0, "It"),
        TokenChunk(1, " is"),
        TokenChunk(2, " blue."),
        TokenChunk(3, "", count=0, finish=FinishReason.STOP),
    ]


@pytest.mark.parametrize(
    "act",
    [
        stream(delta("ab"), STOP),
        stream({"choices": []}, delta("ab"), delta(""), delta("ab"[:0], finish_reason=""), STOP, "[DONE]"),
        stream(delta("ab") | {"error": None}, STOP, {"choices": [], "usage": {"prompt_tokens": 3}}, "[DONE]"),
        stream({"choices": [{"text": "ab", "index": 0}]}, {"choices": [{"text": "", "finish_reason": "eos"}]}),
        stream({"choices": [{"index": 1, "delta": {"content": "no"}}]}, delta("ab"), STOP),
        stream({"choices": [{"delta": {"role": "assistant", "content": None}}]}, delta("ab"), STOP),
        stream({"choices": [{"delta": None, "finish_reason": None}]}, delta("ab"), STOP, content_type="text/plain"),
        stream(delta("ab"), STOP, cut=True),
        body(
            b'\xef\xbb\xbf: hi\r\n\r\ndata: {"choices":[{"delta":\r\ndata: {"content":"ab"}}]}\r\n\r\n'
            b'event: message\rdata:{"choices":[{"delta":{},"finish_reason":"stop"}]}\r\rdata: [DONE]'
        ),
    ],
)
def test_every_dialect_is_understood(act: Act) -> None:
    items, _ = run(act)
    assert text_of(items) == "ab"
    assert chunks_of(items)[-1].finish is FinishReason.STOP


def test_an_empty_answer_is_an_answer() -> None:
    items, _ = run(stream(STOP, "[DONE]"))
    assert items == [Receipt(None), TokenChunk(0, "", count=0, finish=FinishReason.STOP)]


def test_halves_of_a_character_are_joined() -> None:
    halves = [delta("a\ud83d"), delta("\ude00b"), delta("\ud83d", finish_reason="stop")]
    items, _ = run(stream(*halves))
    assert text_of(items) == "a\N{GRINNING FACE}b\N{REPLACEMENT CHARACTER}"
    assert [chunk.open_tokens for chunk in chunks_of(items)] == [1, 0, 1, 0]


def test_reasoning_is_not_shown_and_is_counted_at_the_end() -> None:
    thought = {"choices": [{"index": 0, "delta": {"reasoning_content": "hm"}}]}
    usage = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 9}}
    items, _ = run(stream(thought, thought, delta("ab"), STOP, usage, "[DONE]"))
    assert text_of(items) == "ab"
    assert [chunk.count for chunk in chunks_of(items)] == [1, 8]


def test_a_server_that_ignores_the_limit_is_cut_off() -> None:
    server = ScriptedServer([stream(*[delta("x")] * 100, hang=True)])

    async def main() -> None:
        async with server.running() as url, started(url) as engine:
            items = await read(engine, request(sampling=Sampling(max_tokens=4)))
            assert sum(chunk.count for chunk in chunks_of(items)) == 4
            assert chunks_of(items)[-1].finish is FinishReason.LENGTH
            await until(lambda: server.departed == 1)

    asyncio.run(main())


def test_a_token_in_two_pieces_loses_no_text_at_the_limit() -> None:
    items, _ = run(answer("a", "b", "c", "d", finish="length"), sampling=Sampling(max_tokens=3))
    assert text_of(items) == "abcd"
    assert sum(chunk.count for chunk in chunks_of(items)) == 3


def test_a_connection_is_used_again() -> None:
    server = ScriptedServer([answer("ab")])

    async def main() -> None:
        async with server.running() as url, started(url) as engine:
            for _ in range(3):
                assert text_of(await read(engine, request())) == "ab"

    asyncio.run(main())
    assert len(server.calls) == 3
    assert len(server.connections) == 1


# --- failures, told once in this project's words --------------------------------------------------------------------

TOO_LONG = {"error": {"message": f"This model's maximum context length is 8 tokens: {PROMPT}", "code": "x"}}
OLD_VLLM = {"object": "error", "message": "the prompt is too long", "type": "BadRequestError", "code": 400}


@pytest.mark.parametrize(
    ("act", "kind", "says"),
    [
        (refusal(401, {"error": {"code": "invalid_api_key"}}), EndpointUnavailable, "refuses the key"),
        (refusal(403), EndpointUnavailable, "refuses the key"),
        (refusal(402), EndpointUnavailable, "used up"),
        (refusal(404, {"error": {"code": "model_not_found"}}), EndpointUnavailable, "no such model or path"),
        (refusal(429, retry_after="17"), Overloaded, "no room now"),
        (refusal(429), Overloaded, "no room now"),
        (refusal(429, {"error": {"code": "insufficient_quota"}}), EndpointUnavailable, "used up"),
        (refusal(529), Overloaded, "no room now"),
        (refusal(400, TOO_LONG), PromptTooLong, "does not fit"),
        (refusal(400, OLD_VLLM), PromptTooLong, "does not fit"),
        (refusal(400, {"error": "input is too long"}), PromptTooLong, "does not fit"),
        (refusal(400, {"error": {"type": "exceed_context_size_error"}}), PromptTooLong, "does not fit"),
        (refusal(413), PromptTooLong, "does not fit"),
        (
            refusal(400, {"error": {"code": "unsupported_value", "param": "temperature"}}),
            EndpointFault,
            r"HTTP 400\) \(unsupported_value: temperature\)",
        ),
        (refusal(422, {"detail": [{"loc": ["body"], "msg": SAID}]}), EndpointFault, "HTTP 422"),
        (refusal(408), EndpointTimeout, "HTTP 408"),
        (refusal(500), EndpointUnavailable, "HTTP 500"),
        (refusal(307, location="http://127.0.0.1:9/"), EndpointFault, "redirects"),
        (page(), EndpointFault, "a web page instead of a stream"),
        (page(500), EndpointUnavailable, "HTTP 500"),
        (refusal(200, {"choices": []}), EndpointFault, "a whole document instead of a stream"),
        (refusal(200, {"error": {"message": SAID, "code": 401}}), EndpointUnavailable, "refuses the key"),
        (stream(), EndpointFault, "before the first token, without a finish_reason"),
        (stream("[DONE]"), EndpointFault, "before the first token, without a finish_reason"),
        (stream(delta(SAID)), EndpointFault, "in the middle of the answer, without a finish_reason"),
        (stream(delta(SAID), "[DONE]"), EndpointFault, "in the middle of the answer, without a finish_reason"),
        (stream(delta(SAID), cut=True), EndpointUnavailable, "broke in the middle"),
        (stream(delta(SAID), delta("", finish_reason="content_filter")), EndpointFault, "content filter"),
        (stream(delta(SAID), delta("", finish_reason="tool_calls")), EndpointFault, "tool call"),
        (stream(delta(SAID), delta("", finish_reason=SAID)), EndpointFault, "nobody knows"),
        (stream(delta(SAID), delta("", finish_reason=7)), EndpointFault, "nobody knows"),
        (stream("{", STOP), EndpointFault, "not JSON"),
        (stream("[" * 100_000), EndpointFault, "not JSON"),
        (stream("7"), EndpointFault, "another shape"),
        (stream({"choices": [SAID]}), EndpointFault, "another shape"),
        (stream({"choices": SAID}), EndpointFault, "another shape"),
        (stream({"choices": [{"delta": SAID}]}), EndpointFault, "another shape"),
        (stream({"choices": [{"delta": {"content": [SAID]}}]}), EndpointFault, "another shape"),
        (stream({"choices": [{"text": "a", "token_ids": [SAID]}]}), EndpointFault, "another shape"),
        (stream({"error": {"message": SAID}}), EndpointFault, "reported an error"),
        (stream(delta(SAID), {"error": {"message": SAID, "code": 503}}), EndpointUnavailable, "HTTP 503"),
        (stream({"error": {"message": "maximum context length"}}), PromptTooLong, "does not fit"),
        (body(b'event: error\ndata: {"message": "oh"}\n\n'), EndpointFault, "reported an error"),
        (body(b'{"error": {"message": "oh", "code": 500}}\n'), EndpointUnavailable, "HTTP 500"),
        (body(b'{"error": "oh"}'), EndpointFault, "reported an error"),
        (body(b"{oh"), EndpointFault, "before the first token"),
        (body(b"data: " + b"x" * (2 << 20)), EndpointFault, "an event without an end"),
    ],
)
def test_every_failure_has_a_clear_cause_that_quotes_nothing(
    act: Act, kind: type[DiscoError], says: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SOME_KEY", SECRET)
    with caplog.at_level(logging.DEBUG):
        error, server = failure(act, api_key_env="SOME_KEY", retries=0)
    assert type(error) is kind
    with pytest.raises(kind, match=says):
        raise error
    assert len(server.calls) == 1
    assert server.calls[0][2]["Authorization"] == f"Bearer {SECRET}"
    told = repr(error) + caplog.text
    assert not any(secret in told for secret in (SECRET, PROMPT, SAID))


def test_a_hostile_server_finds_no_field_whose_words_are_repeated() -> None:
    hostile = {"error": dict.fromkeys(("message", "code", "type", "param", "status"), PROMPT)}
    for status in (400, 401, 403, 404, 418, 429, 500, 503):
        error, _ = failure(refusal(status, hostile, retry_after=PROMPT), retries=0)
        assert PROMPT not in repr(error)


def test_overload_says_when_to_come_back() -> None:
    for headers, expected in (
        ({"retry_after": "17"}, 17.0),
        ({"retry_after": "2.5"}, 2.5),
        ({"retry_after_ms": "300"}, 0.3),
        ({"retry_after": "Sun, 06 Nov 1994 08:49:37 GMT", "date": "Sun, 06 Nov 1994 08:49:07 GMT"}, 30.0),
        ({"retry_after": "Sun, 06 Nov 1994 08:49:07 GMT", "date": "Sun, 06 Nov 1994 08:49:37 GMT"}, 0.0),
        ({"retry_after": "soon"}, 1.0),
        ({}, 1.0),
    ):
        error, _ = failure(refusal(429, **headers), retries=0)
        assert isinstance(error, Overloaded)
        assert error.retry_after == pytest.approx(expected)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    async def main() -> None:
        async with started(f"http://127.0.0.1:{port}/v1", retries=0) as engine:
            with pytest.raises(EndpointUnavailable, match="no connection to the server; is it running"):
                _ = engine.info
            with pytest.raises(EndpointUnavailable, match="no connection to the server; is it running"):
                await read(engine, request())

    asyncio.run(main())


def test_a_port_that_speaks_something_else() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail ready\r\n")
        await writer.drain()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            async with started(f"http://127.0.0.1:{port}/v1", retries=0) as engine:
                with pytest.raises(EndpointUnavailable, match="does not speak HTTP"):
                    _ = engine.info

    asyncio.run(main())


def test_a_certificate_that_nobody_trusts_is_not_accepted() -> None:
    async def main() -> None:
        async with FakeServer().running() as url, started(url.replace("http://", "https://"), retries=0) as engine:
            with pytest.raises(EndpointUnavailable, match="TLS"):
                _ = engine.info

    asyncio.run(main())


# --- time -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (silent, "took the request and did not answer"),
        (stream(hang=True), "fell silent"),
        (stream({"choices": [{"delta": {"role": "assistant"}}]}, hang=True), "fell silent"),
    ],
)
def test_without_a_first_token_in_time_the_call_is_given_up_and_not_repeated(act: Act, says: str) -> None:
    error, server = failure(act, first_token_seconds=0.1)
    assert isinstance(error, EndpointTimeout)
    assert says in error.message
    assert len(server.calls) == 1


def test_signs_of_life_are_no_tokens() -> None:
    async def pinging(asked: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(asked)
        while True:
            await response.write(b": ping\n\n")
            await asyncio.sleep(0.005)

    error, _ = failure(pinging, first_token_seconds=0.1)
    assert isinstance(error, EndpointTimeout)


def test_silence_after_a_token_is_not_waited_for_longer_than_the_idle_limit() -> None:
    error, server = failure(stream(delta("a"), hang=True), idle_seconds=0.1, first_token_seconds=60.0)
    assert isinstance(error, EndpointTimeout)
    assert len(server.calls) == 1


def test_a_server_that_finished_and_does_not_close_has_finished() -> None:
    items, _ = run(stream(delta("ab"), STOP, hang=True), idle_seconds=0.1)
    assert text_of(items) == "ab"
    items, _ = run(stream(delta("ab"), STOP, "[DONE]", hang=True))
    assert chunks_of(items)[-1].finish is FinishReason.STOP


# --- retries --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "act",
    [
        hung_up,
        refusal(429, retry_after="0"),
        refusal(502),
        refusal(503),
        page(504),
        stream({"error": {"message": "busy", "code": 503}}),
        stream(cut=True),
    ],
)
def test_what_may_pass_is_tried_again_before_the_first_token(act: Act) -> None:
    items, server = run(act, act, answer("ab"), **QUICK)
    assert text_of(items) == "ab"
    assert [body for _, body, _ in server.calls] == [server.calls[0][1]] * 3


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_retries_are_bounded(retries: int) -> None:
    error, server = failure(refusal(503), retries=retries, **QUICK)
    assert isinstance(error, EndpointUnavailable)
    assert len(server.calls) == retries + 1


@pytest.mark.parametrize(
    "act",
    [
        refusal(400),
        refusal(401),
        refusal(404),
        refusal(500),
        refusal(429),
        refusal(429, retry_after="6"),
        page(),
        stream("{"),
        stream("[DONE]"),
        stream(delta("a"), cut=True),
        stream(delta("a"), {"error": {"message": "busy", "code": 503}}),
        stream({"choices": [{"delta": {"reasoning": "hm"}}]}, cut=True),
    ],
)
def test_what_will_not_pass_or_has_begun_is_not_tried_again(act: Act) -> None:
    _, server = failure(act, answer("ab"), retry_seconds=5.0)
    assert len(server.calls) == 1


def test_no_retry_would_come_after_the_first_token_is_due() -> None:
    error, server = failure(refusal(503, retry_after="4"), first_token_seconds=1.0, retry_seconds=5.0)
    assert isinstance(error, EndpointUnavailable)
    assert len(server.calls) == 1


def test_a_retry_gives_no_second_receipt() -> None:
    items, _ = run(stream(cut=True), answer("ab"), **QUICK)
    assert sum(isinstance(item, Receipt) for item in items) == 1


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 100 tokens. However, you requested 125 tokens "
        "(75 in the messages, 50 in the completion).",
        "'max_tokens' is too large: 50. This model's maximum context length is 100 tokens and your request has 75 "
        "input tokens (50 > 100 - 75).",
        "max_tokens is too large: 50. This model supports at most 25 completion tokens",
    ],
)
def test_a_prompt_that_fits_is_served_with_a_shorter_answer(message: str) -> None:
    items, server = run(refusal(400, {"error": {"message": message, "type": "BadRequestError"}}), answer("ab"))
    assert text_of(items) == "ab"
    assert [body["max_tokens"] for _, body, _ in server.calls] == [50, 25]
    error, server = failure(refusal(400, {"error": {"message": message}}))
    assert isinstance(error, PromptTooLong | EndpointFault)
    assert len(server.calls) == 2


def test_nobody_is_asked_for_more_than_the_context_holds() -> None:
    _, server = run(answer("ab"), sampling=Sampling(max_tokens=5000), context_length=100)
    assert server.calls[0][1]["max_tokens"] == 99


# --- what is sent ---------------------------------------------------------------------------------------------------


def test_a_call_carries_its_own_headers_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("SOME_KEY", f" {SECRET}\n")
    _, server = run(answer("ab"), api_key_env="SOME_KEY")
    headers = {name.lower(): value for name, value in server.calls[0][2].items()}
    assert set(headers) == {
        "host",
        "user-agent",
        "accept",
        "accept-encoding",
        "authorization",
        "content-type",
        "content-length",
    }
    assert headers["authorization"] == f"Bearer {SECRET}"
    assert headers["accept"] == "text/event-stream"
    assert headers["user-agent"] == "disco-serve"


def test_cookies_are_not_kept() -> None:
    server = ScriptedServer([refusal(503, set_cookie="a=b"), answer("ab")])

    async def main() -> None:
        async with server.running() as url, started(url, **QUICK) as engine:
            await read(engine, request())

    asyncio.run(main())
    assert "Cookie" not in server.calls[1][2]


def test_sampling_is_passed_on_and_nothing_else() -> None:
    _, server = run(answer("ab"), sampling=Sampling(max_tokens=7, temperature=0.5, seed=3, presence_penalty=0.25))
    path, sent, _ = server.calls[0]
    assert path == "/v1/chat/completions"
    assert sent == {
        "model": "fake",
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": 7,
        "temperature": 0.5,
        "top_p": 1.0,
        "presence_penalty": 0.25,
        "seed": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_a_server_s_whims_are_the_operator_s_to_name() -> None:
    whims: dict[str, Any] = {
        "max_tokens_field": "max_completion_tokens",
        "omit": ["temperature", "top_p", "seed", "stream_options"],
        "extra_body": {"reasoning_effort": "low"},
    }
    _, server = run(answer("ab"), sampling=Sampling(max_tokens=7, seed=3), **whims)
    assert set(server.calls[0][1]) == {"model", "messages", "max_completion_tokens", "reasoning_effort", "stream"}
    server = ScriptedServer([answer("ab")])

    async def main() -> DiscoError:
        async with server.running() as url, started(url, **whims) as engine:
            with pytest.raises(DiscoError) as raised:
                await read(engine, request(sampling=Sampling(max_tokens=7, temperature=0.0)))
            return raised.value

    error = asyncio.run(main())
    assert (error.code, error.param) == ("unsupported_value", "temperature")  # type: ignore[attr-defined]
    assert server.calls == []


def test_halves_of_characters_in_a_prompt_do_not_reach_a_server() -> None:
    server = ScriptedServer([answer("ab")])

    async def main() -> None:
        async with server.running() as url, started(url) as engine:
            await read(engine, request(ChatPrompt((Message("user", "a\ud83db"),))))

    asyncio.run(main())
    assert server.calls[0][1]["messages"][0]["content"] == "a?b"


# --- leaving --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [0, 1, 3])
def test_closing_the_stream_closes_the_connection(tokens: int) -> None:
    server = ScriptedServer([stream(*[delta("x")] * 3, hang=True)])

    async def main() -> None:
        async with server.running() as url, started(url) as engine:
            async with aclosing(engine.generate(request())) as items:
                for _ in range(1 + tokens):
                    await anext(items)
            await until(lambda: server.departed == 1)

    asyncio.run(main())


@pytest.mark.parametrize("act", [silent, stream(hang=True), stream(delta("x"), hang=True)])
def test_a_cancelled_reader_leaves_no_call_behind(act: Act) -> None:
    server = ScriptedServer([act])

    async def main() -> None:
        async with server.running() as url, started(url) as engine:
            reader = asyncio.create_task(read(engine, request()))
            await until(lambda: server.calls)
            reader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reader
            await until(lambda: server.departed == 1)

    asyncio.run(main())


def test_a_cancelled_pause_makes_no_further_call() -> None:
    server = ScriptedServer([refusal(503, retry_after="5"), answer("ab")])

    async def main() -> None:
        async with server.running() as url, started(url, retry_seconds=5.0) as engine:
            reader = asyncio.create_task(read(engine, request()))
            await until(lambda: server.calls)
            reader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reader

    asyncio.run(main())
    assert len(server.calls) == 1


# --- coming and going -----------------------------------------------------------------------------------------------


def test_a_server_that_comes_later_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    async def main() -> None:
        async with started(f"http://127.0.0.1:{port}/v1", warm_up=True) as engine:
            with pytest.raises(EndpointUnavailable):
                _ = engine.info
            fake = FakeServer()
            app = web.Application()
            app.router.add_post("/v1/chat/completions", fake._chat)
            runner = web.AppRunner(app)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", port).start()
            await until(lambda: engine._able is not None)
            assert engine.info.model == "fake"
            assert text_of(await read(engine, request())) == fake.text
            await runner.cleanup()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("act", "says"), [(refusal(401), "refuses the key"), (refusal(404), "engine.model"), (page(), "a web page")]
)
def test_readiness_needs_a_token_and_says_why_there_was_none(act: Act, says: str) -> None:
    async def main() -> None:
        server = ScriptedServer([act])
        async with server.running() as url, started(url, warm_up=True) as engine:
            with pytest.raises(EndpointUnavailable, match=says):
                _ = engine.info
            server.acts[:] = [answer("a")]
            await until(lambda: engine._able is not None)
            assert engine.info.model == "fake"

    asyncio.run(main())


def test_a_key_that_is_not_there_is_named_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    settings = OpenAIHttpEngineSettings(base_url="https://127.0.0.1:9/v1", model="m", api_key_env="SOME_KEY")

    async def main() -> None:
        engine = make_engine(settings, 1, 1)
        with pytest.raises(EndpointUnavailable, match=r"engine\.api_key_env: .*SOME_KEY is not set"):
            await engine.start()
        await engine.close()

    asyncio.run(main())


def test_a_closed_engine_says_so() -> None:
    async def main() -> None:
        async with FakeServer().running() as url, started(url) as engine:
            assert text_of(await read(engine, request())) == FakeServer.text
            await engine.close()
            with pytest.raises(EndpointUnavailable, match="was closed"):
                await read(engine, request())
            with pytest.raises(EndpointUnavailable, match="was closed"):
                _ = engine.info

    asyncio.run(main())
