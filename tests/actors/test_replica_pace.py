from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.core.model import FinishReason, Pace, TokenChunk
from tests.actors.scripted import RECEIPT, Hang, ScriptedEngine, chunks, drain, replica_of, request, tokens
from tests.support.virtual_loop import run_virtual


def read_at(pace: Pace, seconds: float) -> float:
    assert pace.rate is not None
    return 1 + int(seconds * pace.rate + 1e-6)


@settings(max_examples=60, deadline=None)
@given(
    rate=st.floats(1, 50),
    source=st.floats(1, 500),
    limit=st.integers(1, 60),
    slack=st.floats(0.05, 2),
    hold=st.booleans(),
    count=st.integers(1, 150),
)
def test_the_promises_of_pace(rate: float, source: float, limit: int, slack: float, hold: bool, count: int) -> None:
    pace = Pace(rate=rate, ahead_limit=limit, slack=slack, hold=hold)
    engine = ScriptedEngine([RECEIPT, *tokens(count, 1 / source)])
    batches = run_virtual(drain(replica_of(engine), request(pace=pace)))
    made = engine.produced[1:]
    origin = made[0]

    assert [chunk.index for chunk in chunks(batches)] == list(range(count)), "nothing lost, nothing twice, in order"
    for number, at in enumerate(made):
        assert number + 1 - read_at(pace, at - origin) <= limit, "the engine is never further ahead than that"
    for (before, _), (after, _) in pairwise(batches[1:]):
        assert after - before <= slack + 1 / source + 1e-3, "silence lasts no longer than a slack and a token"
    for left, batch in batches:
        for item in batch:
            if isinstance(item, TokenChunk):
                due = origin + item.index / rate - slack
                assert left <= max(due, made[item.index]) + 1e-3, "in time for the reader, or as soon as it exists"
                if not hold:
                    assert left == pytest.approx(made[item.index], abs=1e-3)


def test_a_paced_stream_sends_few_messages() -> None:
    pace = Pace(rate=4.8, ahead_limit=64, slack=0.5, hold=True)
    engine = ScriptedEngine([RECEIPT, *tokens(240, 0.02)])
    batches = run_virtual(drain(replica_of(engine), request(pace=pace)))
    lifetime = batches[-1][0]
    assert lifetime > 30
    assert len(batches) <= lifetime / 0.5 + 8


def test_a_hung_engine_is_silent_once_its_tokens_have_left() -> None:
    async def main() -> None:
        pace = Pace(rate=1.0, ahead_limit=1000, slack=0.5, hold=True)
        engine = ScriptedEngine([RECEIPT, *tokens(20, 0.01, finish=None), Hang()])
        stream = replica_of(engine).generate(request(pace=pace))
        loop, seen, last = asyncio.get_running_loop(), 0, 0.0
        upcoming = asyncio.ensure_future(anext(stream))
        while True:
            done, _ = await asyncio.wait({upcoming}, timeout=100)
            if not done:
                break
            seen += sum(isinstance(item, TokenChunk) for item in upcoming.result())
            last = loop.time()
            upcoming = asyncio.ensure_future(anext(stream))
        assert seen == 20
        assert last <= 0.2 + 2 * 0.5
        upcoming.cancel()
        await asyncio.wait({upcoming})
        await stream.aclose()
        assert engine.closed

    run_virtual(main())


def test_an_eager_leg_that_rests_gives_signs_of_life() -> None:
    pace = Pace(rate=1.0, ahead_limit=5, slack=0.25, hold=False)
    engine = ScriptedEngine([RECEIPT, *tokens(8, 0.01)])
    batches = run_virtual(drain(replica_of(engine), request(pace=pace)))
    assert sum(batch == [] for _, batch in batches) >= 6
    assert len(chunks(batches)) == 8


def test_without_a_rate_a_leg_pauses_at_its_limit() -> None:
    pace = Pace(rate=None, ahead_limit=16)
    engine = ScriptedEngine([RECEIPT, *tokens(500, 0.01)])
    seen = chunks(run_virtual(drain(replica_of(engine), request(pace=pace))))
    assert sum(chunk.count for chunk in seen) == 16
    assert (seen[-1].index, seen[-1].count, seen[-1].finish) == (16, 0, FinishReason.PAUSED)
    assert len(engine.produced) == 1 + 16
    assert engine.closed


def test_a_pause_inside_a_character_says_so() -> None:
    pace = Pace(rate=None, ahead_limit=2)
    script = [RECEIPT, TokenChunk(0, "a", (1,)), TokenChunk(1, "", (200,), open_tokens=1), TokenChunk(2, "é", (201,))]
    seen = chunks(run_virtual(drain(replica_of(ScriptedEngine(script)), request(pace=pace))))
    assert (seen[-1].finish, seen[-1].open_tokens) == (FinishReason.PAUSED, 1)


def test_a_handed_over_lead_is_read_before_the_leg_goes_on() -> None:
    pace = Pace(rate=2.0, ahead_limit=10, slack=0.5, lead=9.0)
    engine = ScriptedEngine([RECEIPT, *tokens(10, 0.01)])
    run_virtual(drain(replica_of(engine), request(pace=pace)))
    for number, at in enumerate(engine.produced[1:]):
        assert 9 + number + 1 - int(at * 2.0 + 1e-6) <= 10


def test_chunks_of_several_tokens_stay_within_the_limit() -> None:
    pace = Pace(rate=10.0, ahead_limit=12, slack=0.5)
    script = [RECEIPT]
    for number in range(20):
        finish = FinishReason.STOP if number == 19 else None
        script += [0.01, TokenChunk(5 * number, "abcde", count=5, finish=finish)]
    engine = ScriptedEngine(script)
    run_virtual(drain(replica_of(engine), request(pace=pace)))
    made = engine.produced[1:]
    for number, at in enumerate(made):
        assert 5 * (number + 1) - read_at(pace, at - made[0]) <= 12


def test_a_reader_who_stops_pulling_bounds_what_is_generated() -> None:
    async def main() -> None:
        pace = Pace(rate=4.0, ahead_limit=32, slack=0.5)
        engine = ScriptedEngine([RECEIPT, *tokens(10_000, 0.001)])
        stream = replica_of(engine).generate(request(pace=pace))
        await anext(stream)
        await asyncio.sleep(20)
        assert len(engine.produced) - 1 <= 32 + 1 + 20 * 4
        await stream.aclose()

    run_virtual(main())
