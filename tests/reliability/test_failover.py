"""Endpoints that fail, in every way and at every moment: the reader gets the text once, or one honest error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from serve_app.core.errors import EndpointUnavailable, InvalidRequest, Overloaded, PromptTooLong
from serve_app.core.model import FinishReason, TokenChunk
from tests.support.scripted import EndWithoutFinish, Hang, Raw, ScriptedEndpoint, words
from tests.support.scripted_service import Stack, nothing_left
from tests.support.session_stage import CLOUD, LAPTOP, PHONE
from tests.support.virtual_loop import run_virtual

TEXT = "abcdefghijklmnopqrst"


class Foreign(Exception):
    """Not one of ours; its text must not get out."""


#: What an endpoint may do instead of going on.
CUTS: dict[str, Any] = {
    "gone": EndpointUnavailable("gone", "cloud"),
    "foreign": Foreign("the prompt"),
    "hang": Hang,
    "no-finish": EndWithoutFinish(),
    "nonsense": Raw({"choices": []}),
    "none": Raw(None),
    "cancelled": asyncio.CancelledError(),
    "gap": Raw(TokenChunk(50, "x", (1,))),
    "straddle": Raw(TokenChunk(0, TEXT[:19] + "xyz", tuple(range(22)), 22)),
    "too-many": Raw(TokenChunk(8, "x" * 500, tuple(range(500)), 500)),
    "refusal": InvalidRequest("no"),
    "full": Overloaded("full"),
}
#: Those that may happen before the first token without being an answer, or the caller's own fault.
EARLY = {name: cut for name, cut in CUTS.items() if name not in ("refusal", "straddle")}


def cloud(*script: Any, **more: Any) -> ScriptedEndpoint:
    return ScriptedEndpoint(CLOUD, script, **more)


def phone(*script: Any, **more: Any) -> ScriptedEndpoint:
    return ScriptedEndpoint(PHONE, script, **more)


def finishes(answer: Any) -> list[str]:
    return [c["finish_reason"] for chunk in answer.chunks for c in chunk.get("choices", []) if c["finish_reason"]]


@pytest.mark.parametrize("at", [1, 8, 19])
@pytest.mark.parametrize("kind", CUTS)
def test_every_kind_of_cut_at_any_token_is_continued_and_said_once(kind: str, at: int) -> None:
    async def main() -> None:
        one, other = cloud(*words(TEXT[:at], 0.2, 0.05), (0.05, CUTS[kind])), phone(*words(TEXT, 0.3, 0.05))
        stack = Stack(one, other)
        async with nothing_left(stack):
            answer = await stack.stream()
        assert answer.text == TEXT
        assert (finishes(answer), answer.data[-1]) == (["stop"], "[DONE]")
        assert len({(c["id"], c["created"], c["model"]) for c in answer.chunks}) == 1
        handoff = other.calls[0].request.handoff
        assert handoff is not None
        assert (handoff.text, handoff.next_index) == (TEXT[:at], at)
        assert other.calls[0].request.prompt == one.calls[0].request.prompt, "no words were added to the prompt"

    run_virtual(main())


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("kind", EARLY)
def test_a_failure_before_the_first_token_costs_nobody_an_answer(kind: str, stream: bool) -> None:
    async def main() -> None:
        stack = Stack(cloud((0.01, EARLY[kind])), phone(*words(TEXT, 0.1, 0.05)))
        async with nothing_left(stack):
            answer = await stack.ask(stream=stream)
        assert answer.status == 200
        assert TEXT in answer.body.decode().replace('"}', "") or answer.text == TEXT

    run_virtual(main())


@pytest.mark.parametrize("kind", CUTS)
def test_a_cut_that_nobody_can_continue_ends_with_one_error_object(kind: str) -> None:
    async def main() -> None:
        stack = Stack(cloud(*words(TEXT[:8], 0.2, 0.05), (0.05, CUTS[kind])), live={"migration": {"max_rescues": 0}})
        async with nothing_left(stack):
            answer = await stack.stream()
        assert (answer.status, answer.text) == (200, TEXT[:8])
        assert answer.data[-1] != "[DONE]"
        assert sum("error" in chunk for chunk in answer.chunks) == 1
        assert set(answer.error) == {"message", "type", "param", "code", "retryable"}
        assert answer.error["retryable"] == (kind != "refusal")
        assert "the prompt" not in answer.body.decode()
        assert finishes(answer) == []

    run_virtual(main())


def test_a_continuation_that_is_refused_goes_on_to_the_next_and_the_error_names_the_first_cause() -> None:
    async def main() -> None:
        refusing = phone(*words(TEXT[:8], 0.1, 0.1), (0.1, InvalidRequest("no prefill here")))
        one = cloud(*words(TEXT[:8], 0.2, 0.05), (0.05, EndpointUnavailable("the cloud is gone", "cloud")))
        served = await Stack(one, refusing, ScriptedEndpoint(LAPTOP, words(TEXT, 0.2, 0.05))).stream()
        assert served.text == TEXT
        error = (await Stack(one, refusing, live={"migration": {"max_rescues": 1}}).stream()).error
        assert (error["code"], error["retryable"]) == ("endpoint_unavailable", True)
        assert error["message"] == "the cloud is gone; then failed: phone (invalid_request)"

    run_virtual(main())


def test_endless_failures_end_after_a_bounded_number_of_legs() -> None:
    async def main() -> None:
        gone = EndpointUnavailable("gone")
        many = [ScriptedEndpoint(info, [*words(TEXT[:n], 0.1, 0.05), (0.05, gone)])
                for n, info in zip((3, 6, 9), (CLOUD, PHONE, LAPTOP), strict=True)]  # fmt: skip
        stack = Stack(*many, live={"migration": {"max_rescues": 2}})
        answer = await stack.stream()
        assert "error" in answer.chunks[-1]
        assert stack.calls == 3
        assert len(answer.text) == 9

    run_virtual(main())


@pytest.mark.parametrize(("at", "limit"), [(8, 20), (1, 2), (19, 20), (20, 20)])
def test_a_move_leaves_the_rest_of_max_tokens_and_no_leg_gets_none(at: int, limit: int) -> None:
    async def main() -> None:
        one = cloud(*words((TEXT * 2)[:at], 0.2, 0.05), (0.05, EndpointUnavailable("gone")))
        other = phone(*words(TEXT * 2, 0.2, 0.05))
        answer = await Stack(one, other).stream(max_tokens=limit, stream_options={"include_usage": True})
        assert answer.text == (TEXT * 2)[:limit]
        assert finishes(answer) == ["length"]
        assert answer.chunks[-1]["usage"]["completion_tokens"] == limit
        assert [call.request.sampling.max_tokens for call in other.calls] == ([limit - at] if at < limit else [])

    run_virtual(main())


@pytest.mark.parametrize("after", [EndpointUnavailable("gone"), Hang, Raw(None)])
def test_the_end_of_the_answer_stands_whatever_comes_after_it(after: Any) -> None:
    async def main() -> None:
        end = Raw(TokenChunk(8, "", count=0, finish=FinishReason.STOP))
        other = phone(*words(TEXT, 0.2, 0.05))
        answer = await Stack(cloud(*words(TEXT[:8], 0.2, 0.05), (0.05, end), (0.0, after)), other).stream()
        assert (answer.text, finishes(answer), other.calls) == (TEXT[:8], ["stop"], [])

    run_virtual(main())


def test_a_hung_stream_disturbs_no_other() -> None:
    async def main() -> None:
        one, other = cloud(*words(TEXT, 0.2, 0.05)), phone(*words(TEXT, 0.2, 0.05))
        stack = Stack(one, other)
        before = await stack.stream()
        one.script = [*words(TEXT[:3], 0.2, 0.05), (0.05, Hang)]
        hung = asyncio.create_task(stack.stream())
        await asyncio.sleep(0.31)
        one.script = words(TEXT, 0.2, 0.05)
        began = asyncio.get_running_loop().time()
        others = await asyncio.gather(*(stack.stream() for _ in range(10)))
        assert asyncio.get_running_loop().time() - began == pytest.approx(before.at[-1], abs=0.2)
        assert {answer.text for answer in [before, await hung, *others]} == {TEXT}
        (gap,) = [m["gap_s"] for m in (await hung).report["migrations"]]
        assert gap <= stack.live.limits.idle_seconds + stack.live.reader.slack + 0.3 + 0.01

    run_virtual(main())


def test_named_endpoints_are_the_way_to_forbid_failover() -> None:
    async def main() -> None:
        gone = EndpointUnavailable("gone")
        other = phone(*words(TEXT, 0.2, 0.05))
        stack = Stack(cloud(*words(TEXT[:8], 0.2, 0.05), (0.05, gone)), other)
        answer = await stack.stream(disco={"report": True, "endpoints": ["cloud"]})
        assert (answer.error["code"], other.calls) == ("endpoint_unavailable", [])

    run_virtual(main())


@pytest.mark.parametrize("field", ["tools", "functions", "response_format", "logprobs", "n", "grammar"])
def test_structured_answers_are_refused_and_never_started(field: str) -> None:
    values: dict[str, Any] = {
        "tools": [{"type": "function", "function": {"name": "f"}}], "functions": [{"name": "f"}], "n": 2,
        "response_format": {"type": "json_object"}, "logprobs": True, "grammar": 'root ::= "a"',
    }  # fmt: skip

    async def main() -> None:
        stack = Stack(cloud(*words(TEXT, 0.1, 0.1)))
        answer = await stack.ask(stream=True, **{field: values[field]})
        if field == "grammar":
            # Not OpenAI's: named as ignored, and the answer is plain text.
            assert (answer.status, answer.headers["x-disco-ignored"]) == (200, "grammar")
            return
        assert (answer.status, answer.error["param"], stack.calls) == (400, field, 0)

    run_virtual(main())


def test_only_content_wins_a_race() -> None:
    """An endpoint that opens its stream at once, and speaks late, has not won."""

    async def main() -> None:
        early = [(0.0, Raw(TokenChunk(0, "", count=0))), (1.0, "a"), *words(TEXT[1:], 0.05, 0.05)]
        one, other = cloud(*early), phone(*words(TEXT, 0.2, 0.05))
        answer = await Stack(one, other, live={"policy": {"name": "disco-d", "budget": 1.0}}).stream()
        assert answer.report["winner"] == "phone"
        assert answer.report["ttft_s"] == pytest.approx(0.2)

    run_virtual(main())


def test_a_failed_start_starts_the_hedge_at_once() -> None:
    async def main() -> None:
        one, other = cloud((0.01, EndpointUnavailable("gone"))), phone(*words(TEXT, 0.2, 0.05))
        stack = Stack(one, other, live={"policy": {"name": "disco-d", "budget": 0.05}})
        answer = await stack.stream()
        assert answer.report["reason"].startswith("hedge after")
        assert other.calls[0].started == pytest.approx(0.01)
        assert answer.text == TEXT

    run_virtual(main())


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (EndpointUnavailable("gone"), 503, "endpoint_unavailable"),
        (Hang, 504, "endpoint_timeout"),
        (EndWithoutFinish(), 502, "endpoint_fault"),
        (Overloaded("full", 7.2), 429, "overloaded"),
        (PromptTooLong("too long", "messages"), 400, "context_length_exceeded"),
    ],
)
def test_a_failure_has_a_status_that_tells_clients_whether_to_try_again(fault: Any, status: int, code: str) -> None:
    async def main() -> None:
        answer = await Stack(cloud((0.01, fault)), live={"migration": {"max_rescues": 0}}).ask()
        assert (answer.status, answer.error["code"]) == (status, code)
        assert answer.error["retryable"] == (status != 400)
        assert answer.headers.get("retry-after") == ("8" if status == 429 else None)

    run_virtual(main())


SILENT: dict[str, Callable[[], ScriptedEndpoint]] = {
    "first": lambda: cloud((0.0, Hang)),
    "further": lambda: cloud(*words(TEXT[:8], 0.2, 0.05), (0.05, Hang)),
}


@pytest.mark.parametrize("where", SILENT)
def test_a_learnt_endpoint_that_falls_silent_is_noticed_long_before_the_configured_limit(where: str) -> None:
    async def main() -> None:
        one, other = cloud(*words(TEXT, 0.2, 0.05)), phone(*words(TEXT, 0.3, 0.05))
        stack = Stack(one, other)
        for _ in range(60):
            await stack.stream()
        began = asyncio.get_running_loop().time()
        one.script = SILENT[where]().script
        answer = await stack.stream()
        waited = other.calls[-1].started - began
        assert answer.text == TEXT
        assert 2.0 <= waited <= 4.0
        assert waited < (30.0 if where == "first" else 5.0 + stack.live.reader.slack)

    run_virtual(main())


def test_a_slow_endpoint_that_is_the_only_one_is_never_given_up_early() -> None:
    async def main() -> None:
        one = cloud(*words(TEXT, 0.2, 0.05))
        stack = Stack(one)
        for _ in range(60):
            await stack.stream()
        one.script = [(25.0, "a"), (5.5, "b"), *words(TEXT[2:], 0.05, 0.05)]
        answer = await stack.stream()
        assert answer.text == TEXT
        assert len(answer.report["legs"]) == 1

    run_virtual(main())
