"""How far a generation runs ahead of its reader, and what it goes on from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest

from actors.engines.vllm_stream import Step, TokenStream
from serve_app.core.errors import EndpointUnavailable
from serve_app.core.model import FinishReason


class Counting:
    """Generates the numbers that follow the last id, one per turn of the loop, up to ``last``."""

    def __init__(self, last: int = 100, cached: int = 0, fails_at: int | None = None) -> None:
        self.last = last
        self.cached = cached
        self.fails_at = fails_at
        self.made: list[int] = []
        self.inputs: list[list[int]] = []
        self.running = 0

    async def __call__(self, ids: Sequence[int]) -> AsyncGenerator[Step, None]:
        self.inputs.append(list(ids))
        self.running += 1
        try:
            number = ids[-1]
            while number < self.last:
                await asyncio.sleep(0)
                number += 1
                if number == self.fails_at:
                    raise EndpointUnavailable("gone")
                self.made.append(number)
                yield Step((number,), FinishReason.LENGTH if number == self.last else None, self.cached)
        finally:
            self.running -= 1


async def never(ids: Sequence[int]) -> AsyncGenerator[Step, None]:
    await asyncio.Event().wait()
    yield Step(())


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def read_all(stream: TokenStream, pause: int = 0) -> list[int]:
    ids: list[int] = []
    while True:
        step = await stream.next()
        ids += step.ids
        if step.finish is not None:
            return ids
        await turns(pause)


@pytest.mark.parametrize("pause", [0, 1, 7])
@pytest.mark.parametrize("ahead", [None, 1, 2, 10])
def test_nothing_is_lost_or_twice_however_slow_the_reader(ahead: int | None, pause: int) -> None:
    generate = Counting()
    assert asyncio.run(read_all(TokenStream(generate, [7], ahead), pause)) == list(range(8, 101))
    assert generate.made == list(range(8, 101))


def test_a_reader_that_rests_stops_the_generation() -> None:
    generate = Counting(last=10_000)

    async def scenario() -> None:
        stream = TokenStream(generate, [0], ahead=10)
        assert (await stream.next()).ids == (1,)
        await turns(100)
        assert generate.made == list(range(1, 12))
        assert generate.running == 0
        for number in range(2, 6):
            assert (await stream.next()).ids == (number,)
        assert len(generate.inputs) == 1
        for number in range(6, 9):
            assert (await stream.next()).ids == (number,)
        await turns(100)
        assert generate.inputs == [[0], list(range(12))]
        assert len(generate.made) <= 8 + 10
        await stream.aclose()

    asyncio.run(scenario())


def test_without_a_limit_it_runs_to_its_end() -> None:
    generate = Counting()

    async def scenario() -> None:
        stream = TokenStream(generate, [0], ahead=None)
        await stream.next()
        await turns(300)
        assert len(generate.made) == 100
        await stream.aclose()

    asyncio.run(scenario())


@pytest.mark.parametrize("read", [0, 3])
def test_closing_closes_the_generation(read: int) -> None:
    generate = Counting(last=10_000)

    async def scenario() -> None:
        stream = TokenStream(generate, [0])
        await stream.cached(0.0)
        for _ in range(read):
            await stream.next()
        await stream.aclose()
        assert generate.running == 0
        made = len(generate.made)
        await turns(50)
        assert len(generate.made) == made

    asyncio.run(scenario())


def test_a_failure_comes_after_the_steps_before_it() -> None:
    async def scenario() -> None:
        stream = TokenStream(Counting(fails_at=4), [0])
        for number in (1, 2, 3):
            await turns(20)
            assert (await stream.next()).ids == (number,)
        with pytest.raises(EndpointUnavailable):
            await stream.next()
        await stream.aclose()

    asyncio.run(scenario())


def test_a_generation_must_say_why_it_ended() -> None:
    async def scenario() -> None:
        stream = TokenStream(Counting(last=0), [0])
        with pytest.raises(RuntimeError, match="without a finish"):
            await stream.next()

    asyncio.run(scenario())


def test_what_was_cached_is_known_with_the_first_step_or_not_at_all() -> None:
    async def scenario() -> tuple[int, int, int]:
        told = TokenStream(Counting(cached=32), [0])
        late = TokenStream(never, [0])
        failed = TokenStream(Counting(fails_at=1), [0])
        known = await told.cached(10.0), await late.cached(0.0), await failed.cached(10.0)
        assert (await told.next()).ids == (1,)
        for stream in (told, late, failed):
            await stream.aclose()
        return known

    assert asyncio.run(scenario()) == (32, 0, 0)
