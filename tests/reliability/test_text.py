"""The text as the reader gets it: whole characters, no part of a stop string, every token when it is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.core.errors import EndpointUnavailable
from serve_app.core.model import (
    ContinuesBy,
    EndpointInfo,
    FinishReason,
    GenerationRequest,
    Receipt,
    Sampling,
    StreamItem,
    TextPrompt,
    TokenChunk,
)
from serve_app.core.text import Utf8Assembler
from serve_app.settings import LiveSettings
from serve_app.streams import ClientRequest
from tests.support.scripted import Call, ScriptedEndpoint, words
from tests.support.scripted_service import Answer, Stack, nothing_left
from tests.support.session_stage import CLOUD, PHONE, endpoint
from tests.support.virtual_loop import run_virtual

HARD = "👩‍👩‍👧é漢🇩🇪e\u0301\u2028ا"


@dataclass
class ByteEndpoint:
    """Every token is one byte of ``text``. It fails after ``cut`` tokens of the stream."""

    info: EndpointInfo
    text: str
    cut: int | None = None
    calls: list[Call] = field(default_factory=list)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[StreamItem, None]:
        call = Call(request, asyncio.get_running_loop().time())
        self.calls.append(call)
        try:
            yield Receipt(10)
            data, assembler, start = self.text.encode(), Utf8Assembler(), 0
            if request.handoff is not None:
                start = request.handoff.next_index
                ids = request.handoff.token_ids
                assert data[:start] == (bytes(ids) if ids is not None else request.handoff.text.encode())
                assembler.feed(data[:start])
            for index in range(start, len(data)):
                if index == self.cut:
                    raise EndpointUnavailable("cut", self.info.id)
                await asyncio.sleep(0.01)
                text = assembler.feed(data[index : index + 1])
                pending = assembler.pending
                yield TokenChunk(index, text, (data[index],), open_tokens=pending)
            yield TokenChunk(len(data), "", count=0, finish=FinishReason.STOP)
        finally:
            call.closed_at = asyncio.get_running_loop().time()


def told(*stack: ByteEndpoint | ScriptedEndpoint, **fields: object) -> Answer:
    async def main() -> Answer:
        both = Stack(*stack)  # type: ignore[arg-type]
        async with nothing_left(both):
            return await both.stream(**fields)

    return run_virtual(main())


@pytest.mark.parametrize("by", ["ids", "text"])
@pytest.mark.parametrize("cut", [None, *range(1, len(HARD.encode()))])
def test_characters_stay_whole_over_tokens_and_over_a_move_between_two_of_their_bytes(cut: int | None, by: str) -> None:
    other = PHONE if by == "ids" else endpoint("phone", vocabulary="another", continues=ContinuesBy.TEXT)
    answer = told(ByteEndpoint(CLOUD, HARD, cut), ByteEndpoint(other, HARD))
    assert answer.text == HARD
    assert "\ufffd" not in answer.body.decode()


def expected(text: str, stops: list[str]) -> tuple[str, bool]:
    """The text up to the stop string that is complete first (the longest such), and whether there was one."""
    for end in range(1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)], True
    return text, False


@settings(max_examples=300)
@given(
    st.text(alphabet="abé", min_size=1, max_size=14),
    st.lists(st.text(alphabet="abé", min_size=1, max_size=4), min_size=1, max_size=4),
    st.integers(1, 14),
    st.booleans(),
)
def test_nothing_of_a_stop_string_leaks_and_nothing_is_withheld_over_chunks_and_moves(
    text: str, stops: list[str], cut: int, by_bytes: bool
) -> None:
    if by_bytes:
        answer = told(
            ByteEndpoint(CLOUD, text, cut),
            ByteEndpoint(endpoint("phone", vocabulary="another", continues=ContinuesBy.TEXT), text),
            stop=stops,
        )
    else:
        script = [*words(text[:cut], 0.1, 0.1), (0.1, EndpointUnavailable("gone"))]
        answer = told(
            ScriptedEndpoint(CLOUD, script if cut < len(text) else words(text, 0.1, 0.1)),
            ScriptedEndpoint(PHONE, words(text, 0.1, 0.1)),
            stop=stops,
        )
    assert answer.text == expected(text, stops)[0]
    assert answer.data[-1] == "[DONE]"
    assert [c["finish_reason"] for e in answer.chunks for c in e["choices"] if c["finish_reason"]] == ["stop"]


@pytest.mark.parametrize(("stop", "shown"), [("END!", ""), (["END!"], ""), (["ENDO", "x"], ""), ("NEVER", "END!x")])
def test_stop_is_a_string_or_a_list(stop: object, shown: str) -> None:
    script = [(0.1, "E"), (0.1, "ND"), (0.1, "!x")]
    if stop == ["ENDO", "x"]:
        script[2] = (0.1, "Ox")
    assert told(ScriptedEndpoint(CLOUD, script), stop=stop).text == shown


def test_tokens_leave_when_they_come_and_the_answer_forbids_buffering() -> None:
    answer = told(ScriptedEndpoint(CLOUD, words("abcdefghijklmnopqrstuvwxyz" * 2, 0.5, 0.02)))
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["cache-control"] == "no-cache"
    gaps = [later - earlier for earlier, later in pairwise(answer.at[:-1])]
    assert answer.at[0] == pytest.approx(0.5)
    assert all(gap == pytest.approx(0.02) for gap in gaps)


@pytest.mark.parametrize("finish", [FinishReason.STOP, FinishReason.LENGTH])
@pytest.mark.parametrize("text", ["", "a", "ab"])
def test_there_is_exactly_one_finish_reason_and_it_comes_last(text: str, finish: FinishReason) -> None:
    answer = told(
        ScriptedEndpoint(CLOUD, words(text, 0.1, 0.1)), max_tokens=len(text) if text and finish == "length" else 9
    )
    reasons = [c["finish_reason"] for e in answer.chunks for c in e["choices"]]
    assert reasons[-1] in ("stop", "length")
    assert reasons[:-1] == [None] * (len(reasons) - 1)
    assert answer.text == text


@pytest.mark.parametrize("rate", [10.0, None])
def test_a_source_of_ten_thousand_tokens_never_runs_far_ahead_of_a_slow_reader(rate: float | None) -> None:
    async def main() -> None:
        fast = ScriptedEndpoint(CLOUD, words("x" * 10_000, 0.1, 0.0))
        ahead = LiveSettings().reader.ahead_tokens
        request = ClientRequest("r", "disco", TextPrompt("Hi"), Sampling(10_000), consumption_rate=rate)
        stack = Stack(fast, live={"limits": {"stream_seconds": 10_000.0}})
        delivered, worst = 0, 0
        stream = stack.service.open(request)
        try:
            await stream.started()
            async for delta in stream:
                worst = max(worst, fast.generated - delivered)
                delivered = delta.index + delta.count
                await asyncio.sleep(0.1 * delta.count)
        finally:
            await stream.aclose()
        assert delivered == 10_000
        assert 0 < worst <= ahead

    run_virtual(main())
