from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator

import pytest

from actors.engines.base import EngineInfo
from actors.engines.profiles import CloudProfile, DeviceProfile, load_profile
from actors.engines.shaped import Schedule, ShapedEngine
from serve_app.core.model import (
    FinishReason,
    GenerationRequest,
    Handoff,
    Receipt,
    Sampling,
    StreamItem,
    TextPrompt,
    TokenChunk,
)
from serve_app.engine_settings import ShapedEngineSettings, SimulatedEngineSettings
from tests.support.virtual_loop import run_virtual

CLOUD = "replicate-llama2-70b"
DEVICE = "s23-gemma3-1b-q4"
PHONE = load_profile(DEVICE)
assert isinstance(PHONE, DeviceProfile)
PROMPT = TextPrompt("four" * 60)


class Scripted:
    """Token ``i`` follows its predecessor after ``gaps[i]`` seconds of work, begun when it is asked for."""

    def __init__(self, gaps: list[float], receipt: Receipt | None = None, counts: list[int] | None = None) -> None:
        self.info = EngineInfo("scripted", 1024, "v")
        self.gaps = gaps
        self.receipt = receipt or Receipt(60)
        self.counts = counts or [1] * len(gaps)
        self.pulled = 0
        self.closed = 0

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[StreamItem, None]:
        index = 0 if request.handoff is None else request.handoff.next_index
        try:
            yield self.receipt
            for gap, count in zip(self.gaps, self.counts, strict=True):
                self.pulled += 1
                await asyncio.sleep(gap)
                yield TokenChunk(index, "x", count=count)
                index += count
            yield TokenChunk(index, "", count=0, finish=FinishReason.STOP)
        finally:
            self.closed += 1


def shaped(inner: Scripted, profile: str, seed: int = 0) -> ShapedEngine:
    return ShapedEngine(ShapedEngineSettings(profile=profile, engine=SimulatedEngineSettings(), seed=seed), inner)


def request(attempt: str = "a", handoff: Handoff | None = None, park: float = 0.0) -> GenerationRequest:
    return GenerationRequest(attempt, PROMPT, Sampling(max_tokens=100), handoff=handoff, park=park)


async def timed(engine: ShapedEngine, asked: GenerationRequest, read: float = 0.0) -> list[tuple[float, StreamItem]]:
    """Items with their times since the request; the reader spends ``read`` seconds on each."""
    clock = asyncio.get_running_loop().time
    began = clock()
    items = []
    async for item in engine.generate(asked):
        items.append((clock() - began, item))
        await asyncio.sleep(read)
    return items


def chunks(items: list[tuple[float, StreamItem]]) -> list[tuple[float, TokenChunk]]:
    return [(at, item) for at, item in items if isinstance(item, TokenChunk) and item.count]


def test_device_timing_is_the_profiles_line_and_rate():
    items = run_virtual(timed(shaped(Scripted([0.01] * 50), DEVICE), request()))
    assert items[0] == (0.0, Receipt(60))
    tokens = chunks(items)
    for number, (at, chunk) in enumerate(tokens):
        assert at == pytest.approx(PHONE.ttft(60) + number / PHONE.decode_rate)
        assert chunk.imitation_late == 0
    assert items[-1][1] == TokenChunk(50, "", count=0, finish=FinishReason.STOP)
    assert items[-1][0] == tokens[-1][0]


def test_small_delays_of_the_reader_do_not_add_up():
    items = run_virtual(timed(shaped(Scripted([0.001] * 200), DEVICE), request(), read=0.2 / PHONE.decode_rate))
    assert chunks(items)[-1][0] == pytest.approx(PHONE.ttft(60) + 199 / PHONE.decode_rate)


def test_a_device_takes_over_after_prefilling_prompt_and_buffer():
    items = run_virtual(timed(shaped(Scripted([0.01] * 3), DEVICE), request(handoff=Handoff("x" * 40, 40))))
    first_at, first = chunks(items)[0]
    assert first_at == pytest.approx(PHONE.ttft(60 + 40))
    assert first.index == 40


def test_a_device_that_kept_its_cache_prefills_the_rest_only():
    inner = Scripted([0.01] * 3, Receipt(60, reused=75))
    items = run_virtual(timed(shaped(inner, DEVICE), request(handoff=Handoff("x" * 40, 40))))
    assert chunks(items)[0][0] == pytest.approx(PHONE.ttft(25))


@pytest.mark.parametrize(("wait", "done"), [(0.2, 0.0), (PHONE.ttft(30), 30.0), (5.0, 60.0)])
def test_a_parked_prefill_goes_on_at_the_imitated_rate(wait: float, done: float):
    inner = Scripted([0.01] * 3)
    engine = shaped(inner, DEVICE)

    async def scenario() -> float:
        leg = engine.generate(request(park=60.0))
        assert await anext(leg) == Receipt(60)
        await leg.aclose()
        await asyncio.sleep(wait)
        inner.receipt = Receipt(60, reused=60)
        return chunks(await timed(engine, request("b", Handoff("x" * 10, 10))))[0][0]

    assert run_virtual(scenario()) == pytest.approx(PHONE.ttft(60 + 10 - done))


def test_cloud_ttfts_follow_the_measured_distribution_and_nothing_else():
    profile = load_profile(CLOUD)
    assert isinstance(profile, CloudProfile)

    async def first_tokens(seed: int, handoff: Handoff | None) -> list[float]:
        engine = shaped(Scripted([0.01]), CLOUD, seed)
        return [chunks(await timed(engine, request(f"r{n}", handoff)))[0][0] for n in range(400)]

    ttfts = run_virtual(first_tokens(7, None))
    assert ttfts == run_virtual(first_tokens(7, None))
    assert ttfts == run_virtual(first_tokens(7, Handoff("x" * 99, 99)))
    assert ttfts != run_virtual(first_tokens(8, None))
    for probability in (0.1, 0.25, 0.5, 0.75):
        share = sum(ttft <= profile.ttft_at(probability) for ttft in ttfts) / len(ttfts)
        assert share == pytest.approx(probability, abs=0.08)


def test_a_cloud_request_keeps_its_drawn_rate():
    profile = load_profile(CLOUD)
    assert isinstance(profile, CloudProfile)
    times = [at for at, _ in chunks(run_virtual(timed(shaped(Scripted([0.01] * 30), CLOUD), request())))]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert max(gaps) == pytest.approx(min(gaps))
    assert profile.tbt[0] <= gaps[0] <= profile.tbt[-1]


def test_a_real_engine_that_is_slower_says_by_how_much():
    gap = 1 / PHONE.decode_rate
    first = PHONE.ttft(60) + 1.5
    items = chunks(run_virtual(timed(shaped(Scripted([first, *[2 * gap] * 9]), DEVICE), request())))
    for number, (at, chunk) in enumerate(items):
        assert at == pytest.approx(first + 2 * gap * number)
        assert chunk.imitation_late == pytest.approx(1.5 + gap * number)


def test_after_a_stall_the_engine_catches_up_with_the_schedule():
    gap = 1 / PHONE.decode_rate
    real = [0.0] * 5 + [8 * gap] + [0.0] * 20
    items = chunks(run_virtual(timed(shaped(Scripted(real), DEVICE), request())))
    late = [chunk.imitation_late for _, chunk in items]
    assert [number for number, seconds in enumerate(late) if seconds > 1e-9] == [5, 6, 7, 8, 9, 10, 11]
    assert items[-1][0] == pytest.approx(PHONE.ttft(60) + 25 * gap)


def test_a_slow_reader_is_not_the_engines_lateness():
    gap = 1 / PHONE.decode_rate
    items = chunks(run_virtual(timed(shaped(Scripted([gap / 2] * 60), DEVICE), request(), read=3 * gap)))
    assert [chunk.imitation_late for _, chunk in items] == [0.0] * 60


def test_a_reader_that_pauses_finds_few_tokens_ready():
    gap = 1 / PHONE.decode_rate
    inner = Scripted([0.0] * 40)
    engine = shaped(inner, DEVICE)

    async def scenario() -> list[float]:
        clock = asyncio.get_running_loop().time
        stream = engine.generate(request())
        for _ in range(6):
            await anext(stream)
        await asyncio.sleep(100 * gap)
        assert inner.pulled == 5
        resumed = clock()
        times = []
        for _ in range(20):
            await anext(stream)
            times.append((clock() - resumed) / gap)
        await stream.aclose()
        return times

    times = run_virtual(scenario())
    at_once = sum(at < 0.01 for at in times)
    assert 1 <= at_once <= 5
    paced = times[at_once:]
    assert [later - earlier for earlier, later in itertools.pairwise(paced)] == pytest.approx([1.0] * (len(paced) - 1))


def test_a_batch_leaves_when_its_last_token_is_due():
    inner = Scripted([0.0, 0.0], counts=[3, 4])
    times = [at for at, _ in chunks(run_virtual(timed(shaped(inner, DEVICE), request())))]
    assert times == pytest.approx([PHONE.ttft(60) + 2 / PHONE.decode_rate, PHONE.ttft(60) + 6 / PHONE.decode_rate])


def test_an_engine_that_cannot_count_is_imitated_by_an_estimate():
    inner = Scripted([0.0], Receipt(None))
    assert chunks(run_virtual(timed(shaped(inner, DEVICE), request())))[0][0] == pytest.approx(PHONE.ttft(60))


def test_closing_while_a_token_is_held_back_closes_the_engine():
    inner = Scripted([0.0] * 5)

    async def scenario() -> None:
        stream = shaped(inner, DEVICE).generate(request())
        assert await anext(stream) == Receipt(60)
        pending = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.1)
        pending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pending
        await stream.aclose()

    run_virtual(scenario())
    assert inner.closed == 1


def test_info_names_the_profile():
    assert shaped(Scripted([]), DEVICE).info == EngineInfo("scripted", 1024, "v", imitates=DEVICE)


def test_an_unknown_profile_is_refused_at_once():
    with pytest.raises(ValueError, match="known: "):
        shaped(Scripted([]), "nobody")


def test_schedule_moves_only_for_a_lag_beyond_the_buffer():
    schedule = Schedule(first=1.0, gap=0.1)
    assert schedule.next(asked=0.0, tokens=1) == 1.0
    schedule.given(1.0)
    assert schedule.next(asked=1.3, tokens=1) == pytest.approx(1.1)
    assert schedule.late(1.3) == 0
    schedule.given(1.3)
    assert schedule.next(asked=3.0, tokens=1) == pytest.approx(3.0 - 4 * 0.1)
