"""Clients that go away: before the first token, in the middle, with and without a stream; and what is left of them."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from serve_app.core.errors import EndpointUnavailable
from serve_app.core.model import TokenChunk
from tests.support.scripted import Hang, Raw, ScriptedEndpoint, words
from tests.support.scripted_service import Stack, nothing_left
from tests.support.session_stage import CLOUD, PHONE
from tests.support.virtual_loop import run_virtual

TEXT = "abcdefghijklmnopqrst"
#: With the whole budget, both sides start at once.
RACE = {"policy": {"name": "disco-d", "budget": 1.0}}


def pair(first: float, gap: float, text: str = TEXT * 10) -> tuple[ScriptedEndpoint, ScriptedEndpoint]:
    return ScriptedEndpoint(CLOUD, words(text, first, gap)), ScriptedEndpoint(PHONE, words(text, first + 0.1, gap))


@pytest.mark.parametrize("stream", [True, False])
def test_generation_stops_within_a_step_of_the_clients_leaving(stream: bool) -> None:
    async def main() -> None:
        cloud, phone = pair(0.1, 0.02)
        stack = Stack(cloud, phone, live=RACE)
        async with nothing_left(stack):
            await stack.ask(stream=stream, leave_at=0.1 + 5 * 0.02)
        assert 1 <= cloud.generated <= 7
        assert phone.generated == 0
        await asyncio.sleep(60.0)
        assert cloud.generated <= 7

    run_virtual(main())


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("first", [2.0, None])
def test_a_client_that_leaves_before_the_first_token_is_noticed(first: float | None, stream: bool) -> None:
    async def main() -> None:
        script = [(0.0, Hang)] if first is None else words(TEXT, first, 0.02)
        cloud, phone = ScriptedEndpoint(CLOUD, script), ScriptedEndpoint(PHONE, script)
        stack = Stack(cloud, phone, live=RACE)
        async with nothing_left(stack):
            answer = await stack.ask(stream=stream, leave_at=0.1)
        assert answer.status == 0
        for one in (cloud, phone):
            assert one.cancelled_at == pytest.approx(0.1)
            assert one.generated == 0

    run_virtual(main())


def test_a_client_that_leaves_before_a_hedge_is_due_never_starts_it() -> None:
    async def main() -> None:
        cloud, phone = pair(5.0, 0.02)
        stack = Stack(cloud, phone, live={"policy": {"name": "disco-d", "budget": 0.01}})
        async with nothing_left(stack):
            await stack.ask(stream=True, leave_at=0.01)
        await asyncio.sleep(60.0)
        assert len(cloud.calls) + len(phone.calls) == 1

    run_virtual(main())


def test_two_hundred_departures_at_any_moment_return_everything() -> None:
    dice = random.Random(11)

    async def main() -> None:
        cloud = ScriptedEndpoint(CLOUD, words(TEXT, 0.3, 0.02), closing=0.05)
        phone = ScriptedEndpoint(PHONE, [*words(TEXT[:7], 0.2, 0.05), (0.1, EndpointUnavailable("gone"))])
        stack = Stack(cloud, phone, live=RACE | {"migration": {"mode": "overlap"}})

        async def one() -> Any:
            at = asyncio.get_running_loop().time() + dice.uniform(0.0, 1.2)
            return await stack.ask(stream=dice.random() < 0.6, leave_at=at)

        async with nothing_left(stack):
            answers = await asyncio.gather(*(one() for _ in range(200)))
            await asyncio.sleep(1.0)
        assert len({answer.status for answer in answers}) > 1, "some got their answer and some did not"
        assert (await stack.ask()).status == 200

    run_virtual(main())


def test_a_late_abort_of_one_attempt_does_not_hit_the_next_at_the_same_endpoint() -> None:
    async def main() -> None:
        nonsense = Raw(TokenChunk(50, "x", (1,)))
        cloud = ScriptedEndpoint(CLOUD, [*words(TEXT[:3], 0.001, 0.001), (0.001, nonsense)], closing=0.5)
        phone = ScriptedEndpoint(PHONE, [*words(TEXT[:6], 0.001, 0.001), (0.001, nonsense)], closing=0.5)
        stack = Stack(cloud, phone, live={"migration": {"mode": "off", "max_rescues": 2}})

        async def heal() -> None:
            await asyncio.sleep(0.0045)
            cloud.script = words(TEXT, 0.001, 0.001)

        healing = asyncio.create_task(heal())
        answer = await stack.stream()
        await healing
        legs = answer.report["legs"]
        assert [leg["endpoint"] for leg in legs] == ["cloud", "phone", "cloud"]
        assert len({leg["attempt"] for leg in legs}) == 3
        assert answer.text == TEXT
        assert cloud.calls[0].closed_at is not None
        assert cloud.calls[0].closed_at > cloud.calls[1].started, "the first was still stopping when the third began"

    run_virtual(main())


def test_the_same_conversation_after_a_departure_gets_the_same_answer() -> None:
    async def main() -> None:
        stack = Stack(ScriptedEndpoint(CLOUD, words(TEXT, 0.1, 0.05)))
        clean = await stack.stream()
        await stack.ask(stream=True, leave_at=asyncio.get_running_loop().time() + 0.4)
        again = await stack.stream()
        assert again.text == clean.text == TEXT
        assert stack.running == 0

    run_virtual(main())
