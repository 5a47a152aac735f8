from __future__ import annotations

import asyncio
import pickle

import pytest

from actors.refusal import Refusal
from actors.replica import PATIENCE, STUCK_AFTER
from serve_app.core.errors import (
    DiscoError,
    EndpointFault,
    EndpointUnavailable,
    InvalidRequest,
    Overloaded,
    PromptTooLong,
    Unsupported,
)
from serve_app.core.model import FinishReason, Handoff, Receipt, TokenChunk
from tests.actors.scripted import RECEIPT, Hang, ScriptedEngine, Step, chunks, drain, replica_of, request, tokens
from tests.support.virtual_loop import run_virtual


def test_items_leave_when_they_are_ready_and_the_receipt_tells_of_the_queue() -> None:
    async def main() -> None:
        engine = ScriptedEngine([RECEIPT, *tokens(3, 0.5)])
        replica = replica_of(engine)
        first, second = await asyncio.gather(drain(replica, request("a")), drain(replica, request("b")))
        assert [(time, [type(item) for item in batch]) for time, batch in first] == [
            (0.0, [Receipt]),
            (0.5, [TokenChunk]),
            (1.0, [TokenChunk]),
            (1.5, [TokenChunk]),
        ]
        receipts = [batch[0] for time, batch in (first[0], second[0])]
        assert all(isinstance(receipt, Receipt) for receipt in receipts)
        assert [receipt.queued for receipt in receipts if isinstance(receipt, Receipt)] == [0.0, 1.5]
        assert all(receipt.replica for receipt in receipts if isinstance(receipt, Receipt))

    run_virtual(main())


def test_what_is_ready_together_travels_together() -> None:
    async def main() -> None:
        burst = [TokenChunk(number, "x", (number,)) for number in range(1, 50)]
        end = TokenChunk(50, "", count=0, finish=FinishReason.STOP)
        engine = ScriptedEngine([RECEIPT, 1.0, TokenChunk(0, "x", (0,)), 0.1, *burst, end])
        batches = await drain(replica_of(engine), request())
        assert [len(batch) for _, batch in batches] == [1, 1, 50]

    run_virtual(main())


def test_closing_stops_the_engine_and_returns_the_slot() -> None:
    async def main() -> None:
        engine = ScriptedEngine([RECEIPT, *tokens(200, 0.02)])
        replica = replica_of(engine)
        stream = replica.generate(request())
        seen = [await anext(stream) for _ in range(6)]
        await stream.aclose()
        assert len(chunks([(0, batch) for batch in seen])) == 5
        assert len(engine.produced) <= 6 + 1
        assert engine.closed == [pytest.approx(0.1)]
        assert (await drain(replica, request("next")))[-1][1]

    run_virtual(main())


class SlowEngine(ScriptedEngine):
    """Tells its progress."""

    @property
    def progress(self) -> str:
        return f"loading ({asyncio.get_running_loop().time():.0f} s)"


def test_an_engine_that_takes_long_says_how_far_it_is() -> None:
    async def main() -> None:
        replica = replica_of(SlowEngine([RECEIPT, *tokens(1, 0.1)], loading=10 * PATIENCE + 1))
        for rank in range(1, 11):
            refusal = await replica.describe()
            assert isinstance(refusal, Refusal)
            assert isinstance(refusal.error, EndpointUnavailable)
            assert refusal.error.message == f"loading ({rank * PATIENCE:.0f} s)"
            assert refusal.error.endpoint == "phone"
        assert (await replica.describe()).model == "scripted"

    run_virtual(main())


@pytest.mark.parametrize("turns", range(8))
def test_a_call_cancelled_at_any_moment_returns_its_slot(turns: int) -> None:
    async def main() -> None:
        engine = ScriptedEngine([RECEIPT, *tokens(3, 0.01)])
        replica = replica_of(engine)
        await replica.describe()
        call = asyncio.create_task(drain(replica, request("left")))
        for _ in range(turns):
            await asyncio.sleep(0)
        call.cancel()
        served = await asyncio.wait_for(drain(replica, request("stayed")), 5)
        assert len(chunks(served)) == 3
        assert len(engine.closed) == len(engine.started)
        with pytest.raises(asyncio.CancelledError):
            await call

    run_virtual(main())


def test_fifty_fast_cancels_leave_the_slots_free() -> None:
    async def main() -> None:
        engine = ScriptedEngine([RECEIPT, *tokens(100, 0.01)])
        replica = replica_of(engine, slots=2, queue=64)
        calls = [asyncio.create_task(drain(replica, request(f"a{number}"))) for number in range(50)]
        for call in calls:
            await asyncio.sleep(0.003)
            call.cancel()
        assert len(chunks(await drain(replica, request("fifty-first")))) == 100
        assert len(engine.closed) == len(engine.started)

    run_virtual(main())


def test_a_queued_request_whose_caller_left_is_never_started() -> None:
    async def main() -> None:
        engine = ScriptedEngine([RECEIPT, *tokens(10, 0.1)])
        replica = replica_of(engine, slots=1)
        running = asyncio.create_task(drain(replica, request("running")))
        await asyncio.sleep(0.05)
        queued = asyncio.create_task(drain(replica, request("gone")))
        await asyncio.sleep(0.1)
        queued.cancel()
        await running
        await drain(replica, request("later"))
        assert engine.started == ["running", "later"]

    run_virtual(main())


def test_a_full_queue_refuses_at_once() -> None:
    async def main() -> None:
        engine = ScriptedEngine([RECEIPT, *tokens(10, 0.1)])
        replica = replica_of(engine, slots=1, queue=2)
        calls = [asyncio.create_task(drain(replica, request(f"a{number}"))) for number in range(10)]
        await asyncio.sleep(0.01)
        refused = [call for call in calls if call.done()]
        assert len(refused) == 7
        for call in refused:
            error = call.exception()
            assert isinstance(error, Overloaded)
            assert error.retry_after >= 1.0
        await asyncio.wait(calls)
        assert engine.started == ["a0", "a1", "a2"]

    run_virtual(main())


def test_an_end_without_a_reason_is_a_fault_after_the_tokens() -> None:
    async def main() -> None:
        stream = replica_of(ScriptedEngine([RECEIPT, *tokens(3, 0.1, finish=None)])).generate(request())
        seen = [(0.0, await anext(stream)) for _ in range(4)]
        assert len(chunks(seen)) == 3
        with pytest.raises(EndpointFault) as fault:
            await anext(stream)
        assert fault.value.endpoint == "phone"

    run_virtual(main())


def test_a_foreign_exception_becomes_a_fault_without_its_text() -> None:
    async def main() -> None:
        engine = ScriptedEngine([RECEIPT, 0.1, ValueError("canary prompt text")])
        with pytest.raises(EndpointFault) as fault:
            await drain(replica_of(engine), request())
        assert "canary" not in str(fault.value)
        assert "ValueError" in fault.value.message
        assert fault.value.__cause__ is None
        assert fault.value.__suppress_context__

    run_virtual(main())


def test_our_own_errors_pass_and_an_engines_error_names_its_endpoint() -> None:
    async def main() -> None:
        too_long = PromptTooLong("9 tokens do not fit", "prompt")
        with pytest.raises(PromptTooLong) as same:
            await drain(replica_of(ScriptedEngine([too_long])), request())
        assert same.value.param == "prompt"
        with pytest.raises(EndpointUnavailable) as gone:
            await drain(replica_of(ScriptedEngine([EndpointUnavailable("the tablet is off")])), request())
        assert gone.value.endpoint == "phone"
        assert pickle.loads(pickle.dumps(gone.value)).endpoint == "phone"

    run_virtual(main())


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("no tokens", "prompt"),
        PromptTooLong("9 tokens do not fit", "prompt"),
        Unsupported("no grammar here", "response_format"),
        Overloaded("no memory left for one more", 3.0),
    ],
)
@pytest.mark.parametrize("before", [[], [RECEIPT, *tokens(2, 0.1, finish=None)]])
def test_a_refusal_is_the_last_thing_said_and_no_exception(error: DiscoError, before: list[Step]) -> None:
    async def main() -> None:
        said = [batch async for batch in replica_of(ScriptedEngine([*before, error])).generate(request())]
        assert said[-1] == Refusal(error)
        assert pickle.loads(pickle.dumps(said[-1])).error.args == error.args
        assert len(said) == 1 + (3 if before else 0)

    run_virtual(main())


def test_a_full_queue_is_said_and_no_exception() -> None:
    async def main() -> None:
        replica = replica_of(ScriptedEngine([RECEIPT, *tokens(10, 0.1)]), slots=1, queue=0)
        running = asyncio.create_task(drain(replica, request("running")))
        await asyncio.sleep(0.05)
        (said,) = [batch async for batch in replica.generate(request("one too many"))]
        assert isinstance(said, Refusal)
        assert isinstance(said.error, Overloaded)
        await running

    run_virtual(main())


def test_a_stream_handed_over_starts_where_the_handoff_says() -> None:
    async def main() -> None:
        handoff = Handoff(text="abc", next_index=3)
        good = ScriptedEngine([RECEIPT, *tokens(2, 0.1, first=3)])
        seen = chunks(await drain(replica_of(good), request(handoff=handoff)))
        assert [chunk.index for chunk in seen] == [3, 4]
        with pytest.raises(EndpointFault):
            await drain(replica_of(ScriptedEngine([RECEIPT, *tokens(2, 0.1)])), request(handoff=handoff))

    run_virtual(main())


def test_describe_waits_for_the_engine_and_a_leaving_caller_does_not_stop_the_loading() -> None:
    async def main() -> None:
        replica = replica_of(ScriptedEngine([RECEIPT], loading=30.0))
        await replica.check_health()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(replica.describe(), 5)
        assert (await replica.describe()).model == "scripted"
        assert asyncio.get_running_loop().time() == pytest.approx(30.0)

    run_virtual(main())


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (EndpointUnavailable("no file at /models/x.gguf; run `disco up`"), "no file at /models/x.gguf; run `disco up`"),
        (ImportError("no module named llama_cpp"), "ImportError: no module named llama_cpp"),
    ],
)
def test_a_failed_start_is_reported_instead_of_killing_the_replica(error: Exception, reason: str) -> None:
    async def main() -> None:
        replica = replica_of(ScriptedEngine([RECEIPT], start_error=error, loading=1.0))
        for call in (replica.describe(), drain(replica, request()), drain(replica, request()), replica.describe()):
            with pytest.raises(EndpointUnavailable) as failure:
                await call
            assert reason in failure.value.message
            assert failure.value.endpoint == "phone"
        await replica.check_health()

    run_virtual(main())


def test_a_generation_that_does_not_stop_keeps_its_slot_and_fails_the_health_check() -> None:
    async def main() -> None:
        engine = ScriptedEngine([RECEIPT, Hang()], closing=STUCK_AFTER + 10)
        replica = replica_of(engine, slots=1, queue=0)
        stream = replica.generate(request())
        await anext(stream)
        closing = asyncio.create_task(stream.aclose())
        await asyncio.sleep(STUCK_AFTER - 1)
        await replica.check_health()
        with pytest.raises(Overloaded):
            await drain(replica, request())
        await asyncio.sleep(2)
        with pytest.raises(EndpointUnavailable):
            await replica.check_health()
        await closing
        await replica.check_health()

    run_virtual(main())
