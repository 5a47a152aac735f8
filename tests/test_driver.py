"""The driver over scripted endpoints, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

import pytest
import uvloop

from serve_app.core.errors import DiscoError, EndpointFault, EndpointUnavailable, Overloaded
from serve_app.core.legs import Leg
from serve_app.core.migration import MigrationMode
from serve_app.core.model import ContinuesBy, FinishReason, Sampling, TextPrompt, TokenChunk
from serve_app.core.protocol import Delivered, Emit, Phase
from serve_app.core.session import StreamSession
from serve_app.driver import PACED_MARGIN, PATIENCE, StreamDriver, StreamJob
from tests.support.scripted import EndWithoutFinish, Hang, Raw, ScriptedEndpoint, words
from tests.support.session_stage import BREAK, CLOUD, LAPTOP, OVERLAP, PHONE, Stage, endpoint
from tests.support.virtual_loop import run_virtual

TEXT = "abcdefghijklmnopqrst"
LONG = TEXT * 4


@dataclass
class Witness:
    began: list[str] = field(default_factory=list)
    ended_: list[tuple[str, str]] = field(default_factory=list)

    def leg_started(self, leg: Leg) -> dict[str, str]:
        self.began.append(leg.attempt)
        return {"traceparent": leg.attempt}

    def leg_ended(self, leg: Leg) -> None:
        assert not leg.live
        self.ended_.append((leg.attempt, leg.outcome.value))


class Show:
    """A driver over ``endpoints``, what it yields and when."""

    def __init__(
        self,
        *launches: str | tuple[str, float],
        endpoints: Sequence[ScriptedEndpoint],
        delivery: Literal["eager", "paced"] = "eager",
        seed: int | None = None,
        **config: Any,
    ) -> None:
        stage = Stage(*launches, infos=[e.info for e in endpoints], **config)
        self.session = stage.session
        self.witness = Witness()
        self.loop = asyncio.get_running_loop()
        sampling = Sampling(self.session.config.max_tokens, seed=seed)
        job = StreamJob(TextPrompt("prompt"), sampling, delivery)
        self.driver = StreamDriver(self.session, job, {e.info.id: e for e in endpoints}, self.witness)
        self.emits: list[tuple[float, Emit]] = []

    async def play(self, pause: Callable[[int], float] = lambda _: 0.0) -> Show:
        """Read to the end, with ``pause(n)`` seconds after the n-th message, and close."""
        self.driver.start()
        try:
            async for emit in self.driver:
                self.emits.append((self.loop.time(), emit))
                if delay := pause(len(self.emits)):
                    await asyncio.sleep(delay)
        finally:
            await self.driver.aclose()
            self.assert_nothing_runs()
        return self

    def assert_nothing_runs(self) -> None:
        assert not [task.get_name() for task in asyncio.all_tasks() if task.get_name() in self.witness.began]

    async def fails(self) -> DiscoError:
        with pytest.raises(DiscoError) as caught:
            await self.play()
        return caught.value

    @property
    def text(self) -> str:
        return "".join(emit.text for _, emit in self.emits)


def cloud(*script: Any, **more: Any) -> ScriptedEndpoint:
    return ScriptedEndpoint(CLOUD, script, **more)


def phone(*script: Any, **more: Any) -> ScriptedEndpoint:
    return ScriptedEndpoint(PHONE, script, **more)


# --- one leg and races ----------------------------------------------------------------------------------------------


def test_tokens_arrive_when_they_are_written() -> None:
    async def main() -> None:
        show = await Show("cloud", endpoints=[cloud(*words("abc", 1.0, 0.5))]).play()
        assert [(at, emit.text) for at, emit in show.emits] == [(1.0, "a"), (1.5, "b"), (2.0, "c")]
        assert show.driver.closed is not None
        assert show.driver.closed.finish is FinishReason.STOP
        assert show.witness.ended_ == [("r-0-cloud", "completed")]

    run_virtual(main())


def test_a_request_carries_what_the_session_decided() -> None:
    async def main() -> None:
        one = cloud(*words("ab", 0.1, 0.1))
        await Show("cloud", endpoints=[one], max_tokens=2, seed=7).play()
        request = one.calls[0].request
        assert (request.attempt_id, request.prompt, request.sampling) == (
            "r-0-cloud",
            TextPrompt("prompt"),
            Sampling(2, seed=7),
        )
        assert (request.handoff, request.park, request.trace) == (None, 0.0, {"traceparent": "r-0-cloud"})
        assert request.pace.rate == 4.0

    run_virtual(main())


def test_the_faster_one_wins_and_the_device_stops_at_once() -> None:
    async def main() -> None:
        slow = phone(*words(TEXT, 3.0, 0.1))
        show = await Show("cloud", "phone", endpoints=[cloud(*words("abc", 1.0, 0.5)), slow]).play()
        assert show.text == "abc"
        assert (slow.cancelled_at, slow.generated) == (1.0, 0)
        assert sorted(show.witness.ended_) == [("r-0-cloud", "completed"), ("r-1-phone", "lost")]

    run_virtual(main())


def test_a_losing_cloud_stops_after_its_first_token() -> None:
    async def main() -> None:
        slow = cloud(*words(TEXT, 3.0, 0.1))
        show = await Show("cloud", "phone", endpoints=[slow, phone(*words(TEXT, 1.0, 0.5))]).play()
        assert show.text == TEXT
        assert (slow.cancelled_at, slow.generated) == (3.0, 1)

    run_virtual(main())


@pytest.mark.parametrize(("first", "started"), [(0.3, []), (2.0, [0.5])])
def test_a_hedge_starts_when_it_is_due_and_needed(first: float, started: list[float]) -> None:
    async def main() -> None:
        hedge = phone(*words("abc", 9.0, 0.1))
        show = Show("cloud", ("phone", 0.5), endpoints=[cloud(*words("abc", first, 1.0)), hedge])
        await show.play()
        assert [call.started for call in hedge.calls] == started
        assert show.text == "abc"

    run_virtual(main())


def test_a_hedge_starts_at_once_after_a_failure() -> None:
    async def main() -> None:
        hedge = phone(*words("abc", 1.0, 0.1))
        show = Show("cloud", ("phone", 5.0), endpoints=[cloud((0.01, EndpointUnavailable("gone", "cloud"))), hedge])
        await show.play()
        assert [call.started for call in hedge.calls] == [0.01]
        assert show.text == "abc"

    run_virtual(main())


def test_started_returns_with_the_first_text_or_the_end_and_raises_what_came_before() -> None:
    async def first(*script: Any) -> tuple[float, str]:
        show = Show("cloud", endpoints=[cloud(*script)], max_rescues=0)
        show.driver.start()
        try:
            await show.driver.started()
            await show.driver.started()
            return asyncio.get_running_loop().time(), "".join([emit.text async for emit in show.driver])
        finally:
            await show.driver.aclose()

    assert run_virtual(first(*words("ab", 1.0, 0.5))) == (1.0, "ab")
    assert run_virtual(first((2.0, Raw(_stop(0))))) == (2.0, "")
    with pytest.raises(Overloaded):
        run_virtual(first((1.0, Overloaded("full"))))


def _stop(index: int) -> TokenChunk:
    return TokenChunk(index, "", count=0, finish=FinishReason.STOP)


# --- failures -------------------------------------------------------------------------------------------------------


class Secret(Exception):
    pass


@pytest.mark.parametrize(
    ("step", "code", "message"),
    [
        (EndpointUnavailable("gone", "cloud"), "endpoint_unavailable", "gone"),
        (Secret("the prompt"), "endpoint_fault", "cloud raised Secret"),
        (EndWithoutFinish(), "endpoint_fault", "the stream ended without a finish"),
        (Raw("nonsense"), "endpoint_fault", "cloud raised AttributeError"),
        (asyncio.CancelledError(), "endpoint_unavailable", "cloud cancelled its own stream"),
        (Hang, "endpoint_timeout", "cloud: no further token in time"),
    ],
)
def test_the_text_comes_before_its_error(step: Any, code: str, message: str) -> None:
    async def main() -> None:
        show = Show("cloud", endpoints=[cloud(*words("ab", 0.5, 0.1), (0.1, step))], max_rescues=0)
        error = await show.fails()
        assert (error.code, error.message) == (code, message)
        assert show.text == "ab"
        assert show.witness.ended_ == [("r-0-cloud", "failed")]
        with pytest.raises(type(error)):
            await anext(show.driver)

    run_virtual(main())


@pytest.mark.parametrize("step", [EndpointUnavailable("gone"), Secret(), EndWithoutFinish(), Hang, Raw(None)])
def test_every_kind_of_cut_is_continued_elsewhere(step: Any) -> None:
    async def main() -> None:
        other = phone(*words(TEXT, 0.5, 0.1))
        show = Show("cloud", endpoints=[cloud(*words(TEXT[:8], 0.5, 0.1), (0.1, step)), other])
        await show.play()
        assert show.text == TEXT, "the words once, not twice"
        handoff = other.calls[0].request.handoff
        assert handoff is not None
        assert (handoff.next_index, handoff.text) == (8, TEXT[:8])
        assert [name for name, _ in show.witness.ended_] == ["r-0-cloud", "r-1-phone"]

    run_virtual(main())


def test_endless_failures_end() -> None:
    async def main() -> None:
        gone = EndpointUnavailable("gone")
        names = ("cloud", "phone", "laptop", "tablet")
        many = [ScriptedEndpoint(endpoint(n), [(0.1, TEXT[i]) for i in range(3)] + [(0.1, gone)]) for n in names]
        for rank, one in enumerate(many):
            one.script = [(0.1, c) for c in TEXT[: 3 * (rank + 1)]] + [(0.1, gone)]
        show = Show("cloud", endpoints=many)
        assert (await show.fails()).code == "endpoint_unavailable"
        assert show.text == TEXT[:9]
        assert sum(len(one.calls) for one in many) == 3

    run_virtual(main())


def test_max_tokens_hold_over_legs() -> None:
    async def main() -> None:
        other = phone(*words(TEXT * 2, 0.5, 0.1))
        show = Show("cloud", endpoints=[cloud(*words(TEXT[:8], 0.5, 0.1), (0.1, Hang)), other], max_tokens=20)
        await show.play()
        assert (show.text, other.calls[0].request.sampling.max_tokens, other.generated) == (TEXT, 12, 12)
        assert show.driver.closed is not None
        assert show.driver.closed.finish is FinishReason.LENGTH

    run_virtual(main())


def test_no_two_legs_of_one_stream_share_a_seed() -> None:
    async def main() -> None:
        gone = EndpointUnavailable("gone")
        one, two = cloud(*words(TEXT[:3], 0.1, 0.1), (0.1, gone)), phone(*words(TEXT[:7], 0.1, 0.1), (0.1, gone))
        three = ScriptedEndpoint(LAPTOP, words(TEXT, 0.1, 0.1))
        show = await Show("cloud", endpoints=[one, two, three], seed=2**31 - 2).play()
        assert show.text == TEXT
        assert [e.calls[0].request.sampling.seed for e in (one, two, three)] == [2**31 - 2, 1, 5]

    run_virtual(main())


# --- migrations -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [BREAK, OVERLAP])
def test_a_migration_is_not_noticed(mode: MigrationMode) -> None:
    async def main() -> None:
        source, target = cloud(*words(LONG, 0.5, 0.05)), phone(*words(LONG, 0.9, 0.1))
        show = await Show("cloud", endpoints=[source, target], mode=mode, delivery="paced").play()
        assert show.text == LONG
        assert [record.outcome for record in show.session.migrations] == ["completed"]
        handoff = target.calls[0].request.handoff
        assert handoff is not None
        assert handoff.token_ids is not None
        assert len(handoff.token_ids) == handoff.next_index == show.session.migrations[0].at_token
        assert_on_time(show)
        assert source.cancelled_at is not None
        if mode is BREAK:
            assert source.generated == handoff.next_index

    run_virtual(main())


def test_a_late_target_is_abandoned_before_the_reader_notices() -> None:
    async def main() -> None:
        source, target = cloud(*words(LONG, 0.5, 0.05)), phone(*words(LONG, 60.0, 0.1))
        show = await Show("cloud", endpoints=[source, target], mode=OVERLAP).play()
        assert show.text == LONG
        assert target.cancelled_at is not None
        assert target.cancelled_at < 3.0
        assert [leg.outcome.value for leg in show.session.legs] == ["completed", "abandoned"]
        assert_on_time(show)

    run_virtual(main())


def test_a_source_that_ends_meanwhile_ends_the_stream() -> None:
    async def main() -> None:
        short, target = cloud(*words(TEXT[:10], 0.5, 0.05)), phone(*words(TEXT, 60.0, 0.1))
        show = await Show("cloud", endpoints=[short, target], mode=OVERLAP).play()
        assert show.text == TEXT[:10]
        assert target.cancelled_at == pytest.approx(0.5 + 9 * 0.05)

    run_virtual(main())


def assert_on_time(show: Show) -> None:
    """No token comes after the reader's ideal time for it, d_i = a_1 + i / r_c."""
    begin = show.session.buffer.arrivals[0]
    for at, emit in show.emits:
        for index in range(emit.index, emit.index + emit.count):
            assert at <= begin + index / 4.0 + 1e-9, index


# --- delivery -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slack", [0.5, 2.0])
def test_paced_text_is_batched_and_never_late(slack: float) -> None:
    async def main() -> None:
        show = Show("cloud", endpoints=[cloud(*words(LONG, 0.5, 0.01))], delivery="paced", slack=slack)
        await show.play()
        assert show.text == LONG
        assert_on_time(show)
        begin = show.emits[0][0]
        for at, emit in show.emits:
            ahead = begin + (emit.index + emit.count - 1) / 4.0 - at
            assert ahead <= slack * (1 + PACED_MARGIN), "not long before it is read"
        for (earlier, _), (later, _) in pairwise([pair for pair in show.emits if pair[0] > begin + slack]):
            assert later - earlier >= slack - 1e-9
        assert len(show.emits) <= 4 + 20.0 / slack, "messages per second"

    run_virtual(main())


def test_eager_text_leaves_at_once_and_what_waited_leaves_together() -> None:
    async def main() -> None:
        show = Show("cloud", endpoints=[cloud(*words(TEXT, 0.5, 0.1))])
        await show.play(lambda n: 0.55 if n == 3 else 0.0)
        assert [emit.text for _, emit in show.emits[:5]] == ["a", "b", "c", "defgh", "i"]
        assert show.emits[1][0] == pytest.approx(0.6)

    run_virtual(main())


def test_texts_of_two_writers_are_not_mixed() -> None:
    async def main() -> None:
        gone = cloud(*words("abc", 0.1, 0.1), (0.1, EndpointUnavailable("gone")))
        show = Show("cloud", endpoints=[gone, phone(*words("abcdef", 0.1, 0.1))])
        await show.play(lambda n: 5.0 if n == 1 else 0.0)
        assert [(emit.endpoint, emit.text) for _, emit in show.emits] == [
            ("cloud", "a"),
            ("cloud", "bc"),
            ("phone", "def"),
        ]

    run_virtual(main())


@pytest.mark.parametrize("rate", [None, 4.0])
def test_a_client_that_stops_reading_stops_the_writing(rate: float | None) -> None:
    async def main() -> None:
        fast = cloud(*words(LONG, 0.1, 0.02))
        show = Show("cloud", endpoints=[fast], rate=rate, ahead_tokens=32)
        seen: list[int] = []

        def pause(n: int) -> float:
            if n == 4:
                return 100.0
            seen.append(fast.generated - sum(emit.count for _, emit in show.emits[:-1]))
            return 0.0

        await show.play(pause)
        assert show.text == LONG
        assert 16 <= max(seen) <= 32
        assert len(fast.calls) > 1, "it was paused and resumed"
        assert len({call.request.attempt_id for call in fast.calls}) == len(fast.calls)

    run_virtual(main())


def test_a_leg_that_cannot_be_resumed_runs_on() -> None:
    async def main() -> None:
        stubborn = ScriptedEndpoint(endpoint("cloud", continues=ContinuesBy.NO), words(LONG, 0.1, 0.02))
        show = Show("cloud", endpoints=[stubborn], rate=None, ahead_tokens=16)
        await show.play(lambda n: 100.0 if n == 1 else 0.0)
        assert show.text == LONG
        assert len(stubborn.calls) == 1

    run_virtual(main())


# --- leaving --------------------------------------------------------------------------------------------------------


def leaving(name: str) -> tuple[Show, float, Phase]:
    slow, quick = words(TEXT, 5.0, 0.1), words(LONG, 0.5, 0.05)
    cases: dict[str, tuple[Callable[[], Show], float, Phase]] = {
        "prefill": (lambda: Show("cloud", ("phone", 9.0), endpoints=[cloud(*slow), phone(*slow)]), 1.0, Phase.PREFILL),
        "race": (lambda: Show("cloud", "phone", endpoints=[cloud(*slow), phone(*slow)]), 1.0, Phase.PREFILL),
        "decode": (lambda: Show("cloud", endpoints=[cloud(*quick)]), 1.0, Phase.DECODE),
        "watched": (lambda: Show("cloud", "phone", endpoints=[cloud(*slow), phone(*quick)]), 1.0, Phase.DECODE),
        "break": (lambda: Show("cloud", endpoints=[cloud(*quick), phone(*slow)], mode=BREAK), 1.0, Phase.HANDOFF),
        "overlap": (lambda: Show("cloud", endpoints=[cloud(*quick), phone(*slow)], mode=OVERLAP), 1.0, Phase.HANDOFF),
        "paused": (lambda: Show("cloud", endpoints=[cloud(*quick)], ahead_tokens=16, rate=50.0), 4.0, Phase.PAUSED),
        "hung": (lambda: Show("cloud", endpoints=[cloud((0.1, Hang))]), 4.0, Phase.PREFILL),
    }
    make, at, phase = cases[name]
    return make(), at, phase


@pytest.mark.parametrize("closing", [0.0, 0.3])
@pytest.mark.parametrize("name", ["prefill", "race", "decode", "watched", "break", "overlap", "paused", "hung"])
def test_leaving_stops_every_leg_and_waits_for_it(name: str, closing: float) -> None:
    async def main() -> None:
        show, at, phase = leaving(name)
        endpoints = list(show.driver._endpoints.values())
        for one in endpoints:
            assert isinstance(one, ScriptedEndpoint)
            one.closing = closing
        show.driver.start()
        await asyncio.sleep(at)
        assert show.session.phase is phase
        await show.driver.aclose()
        show.assert_nothing_runs()
        assert len(asyncio.all_tasks()) == 1
        calls = [call for one in endpoints for call in one.calls]  # type: ignore[attr-defined]
        assert calls
        assert all(call.closed_at is not None for call in calls), "each had the time it needs to stop"
        assert sorted(name for name, _ in show.witness.ended_) == sorted(show.witness.began)
        generated = [call.generated for call in calls]
        await asyncio.sleep(60.0)
        assert [call.generated for call in calls] == generated
        await show.driver.aclose()

    run_virtual(main())


def test_a_leg_that_is_already_stopping_is_not_disturbed() -> None:
    async def main() -> None:
        slow = phone(*words(TEXT, 3.0, 0.1), closing=5.0)
        show = await Show("cloud", "phone", endpoints=[cloud(*words("abc", 1.0, 0.1)), slow]).play()
        assert show.text == "abc"
        assert (slow.cancelled_at, slow.calls[0].closed_at) == (1.0, 6.0)

    run_virtual(main())


@pytest.mark.parametrize("broken", ["handle", "wake_at"])
@pytest.mark.parametrize("at", [0.0, 0.95, 1.15, 3.0])
def test_a_fault_of_the_session_itself_ends_the_stream_and_stops_every_leg(
    at: float, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Bug(Exception):
        pass

    async def main() -> None:
        legs = [cloud(*words("ab", 1.0, 0.1), (0.1, Hang)), phone(*[(0.5, Hang)] * 3)]
        show = Show("cloud", ("phone", 0.5), endpoints=legs, idle_timeout=1.0)
        real = StreamSession.handle

        def fails(session: StreamSession, event: Any, now: float) -> Any:
            if now >= at:
                if broken == "handle":
                    raise Bug
                monkeypatch.setattr(StreamSession, "wake_at", property(_raise(Bug)))
            return real(session, event, now)

        monkeypatch.setattr(StreamSession, "handle", fails)
        with pytest.raises(Bug):
            await show.play()
        assert "ab".startswith(show.text)
        assert all(call.closed_at is not None for leg in legs for call in leg.calls)
        assert sorted(name for name, _ in show.witness.ended_) == sorted(show.witness.began)

    run_virtual(main())


def test_an_instant_that_is_now_is_no_fault_on_uvloop() -> None:
    async def main() -> None:
        legs = [cloud(*words("abc", 0.0, 0.0)), phone(*words("abc", 0.0, 0.0))]
        show = Show("cloud", ("phone", 1e-4), endpoints=legs)
        show.driver.start()
        show.driver._feed(Delivered(0))
        assert "".join([emit.text async for emit in show.driver]) == "abc"
        await show.driver.aclose()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def _raise(kind: type[Exception]) -> Callable[[object], float]:
    def fails(_: object) -> float:
        raise kind

    return fails


def test_a_leg_that_broke_the_contract_stops_in_peace() -> None:
    async def main() -> None:
        gap = Raw(TokenChunk(50, "x", (1,)))
        broken = cloud(*words("ab", 1.0, 0.1), (0.1, gap), closing=0.5)
        show = await Show("cloud", endpoints=[broken, phone(*words("abc", 1.0, 0.1))]).play()
        assert show.text == "abc"
        assert broken.calls[0].closed_at == pytest.approx(1.2 + 0.5)

    run_virtual(main())


def test_a_leg_that_does_not_stop_holds_nobody_up_for_long() -> None:
    async def main() -> None:
        stuck = phone(*words(TEXT, 3.0, 0.1), closing=500.0)
        show = Show("cloud", "phone", endpoints=[cloud(*words("abc", 1.0, 0.1)), stuck])
        show.driver.start()
        assert [emit.text async for emit in show.driver] == ["a", "b", "c"]
        await show.driver.aclose()
        assert asyncio.get_running_loop().time() < 1.5 + PATIENCE
        await asyncio.sleep(500.0)
        assert len(asyncio.all_tasks()) == 1, "it stops by itself when it can"

    run_virtual(main())


def test_leaving_in_the_same_instant_as_the_start() -> None:
    async def main() -> None:
        one = cloud(*words(TEXT, 1.0, 0.1))
        show = Show("cloud", endpoints=[one])
        show.driver.start()
        await show.driver.aclose()
        show.assert_nothing_runs()
        assert len(asyncio.all_tasks()) == 1
        assert show.witness.ended_ == [("r-0-cloud", "cancelled")]
        never = Show("cloud", endpoints=[one])
        await never.driver.aclose()
        assert (never.witness.began, one.generated) == ([], 0)
        with pytest.raises(StopAsyncIteration):
            await anext(never.driver)

    run_virtual(main())


def test_an_iterator_that_is_dropped_half_way() -> None:
    async def main() -> None:
        one = cloud(*words(TEXT, 0.5, 0.1))
        show = Show("cloud", endpoints=[one])
        show.driver.start()
        async for emit in show.driver:
            if emit.index == 3:
                break
        await show.driver.aclose()
        assert (one.generated, one.cancelled_at) == (4, pytest.approx(0.8))

    run_virtual(main())


def test_a_reader_in_wait_sees_the_end_when_another_task_closes() -> None:
    async def main() -> None:
        show = Show("cloud", endpoints=[cloud((0.1, Hang))])
        show.driver.start()
        reader = asyncio.create_task(anext(show.driver, None))
        await asyncio.sleep(1.0)
        await show.driver.aclose()
        assert await reader is None

    run_virtual(main())


@pytest.mark.parametrize("when", [0.05, 0.95, 1.05, 2.3])
def test_a_cancelled_reader_leaves_nothing_behind(when: float) -> None:
    async def main() -> None:
        legs = [cloud(*words(TEXT, 1.0, 0.1), closing=0.2), phone(*words(TEXT, 1.5, 0.1), closing=0.2)]
        show = Show("cloud", "phone", endpoints=legs, mode=OVERLAP)

        async def read() -> None:
            await show.play()

        reader = asyncio.create_task(read())
        await asyncio.sleep(when)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert all(call.closed_at is not None for one in legs for call in one.calls)
        assert sorted(name for name, _ in show.witness.ended_) == sorted(show.witness.began)

    run_virtual(main())


def test_many_streams_at_random_leave_nothing_behind() -> None:
    dice = random.Random(7)

    async def one() -> int:
        legs = [cloud(*words(TEXT, dice.random(), 0.05)), phone(*words(TEXT, dice.random(), 0.05))]
        show = Show("cloud", ("phone", dice.random()), endpoints=legs, mode=dice.choice([None, BREAK, OVERLAP]))
        show.driver.start()
        try:
            async with asyncio.timeout(dice.uniform(0.0, 3.0)):
                async for emit in show.driver:
                    show.emits.append((0.0, emit))
        except TimeoutError:
            pass
        finally:
            await show.driver.aclose()
        assert TEXT.startswith(show.text)
        assert all(call.closed_at is not None for leg in legs for call in leg.calls)
        return len(show.emits)

    async def main() -> list[int]:
        return await asyncio.gather(*(one() for _ in range(200)))

    assert sum(run_virtual(main())) > 0


# --- observers ------------------------------------------------------------------------------------------------------


def test_each_leg_is_reported_once_whatever_ends_it() -> None:
    async def main() -> None:
        gone = EndpointUnavailable("gone")
        legs = [
            cloud(*words(TEXT[:2], 0.1, 0.1), (0.1, gone)),
            phone(*words(TEXT, 0.1, 0.1)),
            ScriptedEndpoint(LAPTOP, [(9.0, "a")]),
        ]
        show = await Show("cloud", "laptop", endpoints=legs).play()
        assert show.witness.ended_ == [("r-1-laptop", "lost"), ("r-0-cloud", "failed"), ("r-2-phone", "completed")]
        assert show.witness.began == ["r-0-cloud", "r-1-laptop", "r-2-phone"]

    run_virtual(main())


def test_a_fault_keeps_the_endpoint_but_nothing_that_was_said() -> None:
    async def main() -> None:
        show = Show("cloud", endpoints=[cloud((0.1, Secret("the prompt")))], max_rescues=0)
        error = await show.fails()
        assert isinstance(error, EndpointFault)
        assert (error.endpoint, error.__cause__, error.__context__) == ("cloud", None, None)
        assert "prompt" not in repr(error)

    run_virtual(main())


def test_sampling_is_that_of_the_job() -> None:
    async def main() -> None:
        one = cloud(*words("a", 0.1, 0.1))
        show = Show("cloud", endpoints=[one])
        show.driver._job = replace(show.driver._job, sampling=Sampling(100, temperature=0.0, top_p=0.5))
        await show.play()
        assert one.calls[0].request.sampling == Sampling(100, temperature=0.0, top_p=0.5)

    run_virtual(main())
