from __future__ import annotations

import asyncio
import random

import pytest

from actors.slots import Slots
from serve_app.core.errors import Overloaded
from tests.support.virtual_loop import run_virtual


def test_slots_are_given_in_the_order_of_arrival() -> None:
    async def main() -> list[tuple[int, float]]:
        slots, served = Slots(2, 10), []

        async def visit(number: int) -> None:
            granted = await slots.acquire()
            served.append((number, granted))
            await asyncio.sleep(1)
            slots.release(granted)

        await asyncio.gather(*(visit(number) for number in range(5)))
        assert slots.free == 2
        return served

    assert run_virtual(main()) == [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2)]


def test_simultaneous_arrivals_fill_slots_and_queue_exactly() -> None:
    async def main() -> None:
        slots = Slots(2, 3)
        asked = [asyncio.create_task(slots.acquire()) for _ in range(10)]
        await asyncio.sleep(1)
        refused = [task for task in asked if task.done() and isinstance(task.exception(), Overloaded)]
        assert len(refused) == 5
        assert slots.waiting == 3
        for granted in (0.0, 0.0, 1.0, 1.0, 1.0):
            slots.release(granted)
        await asyncio.wait([task for task in asked if task not in refused])
        assert slots.free == 2

    run_virtual(main())


async def hold(slots: Slots, seconds: float) -> None:
    granted = await slots.acquire()
    await asyncio.sleep(seconds)
    slots.release(granted)


def test_retry_after_is_what_is_left_of_the_time_slots_are_held() -> None:
    async def main() -> None:
        slots = Slots(1, 0)
        await hold(slots, 20.0)
        await slots.acquire()
        await asyncio.sleep(5.0)
        with pytest.raises(Overloaded) as refusal:
            await slots.acquire()
        assert refusal.value.retry_after == pytest.approx(15.0)

    run_virtual(main())


def test_a_long_stream_makes_nobody_wait_longer_for_long() -> None:
    async def main() -> None:
        slots = Slots(1, 0)
        await hold(slots, 600.0)
        for _ in range(2):
            await hold(slots, 2.0)
        await slots.acquire()
        assert slots.retry_after() == pytest.approx(2.0)

    run_virtual(main())


def test_those_who_queue_go_first() -> None:
    async def main() -> None:
        slots = Slots(1, 2)
        await hold(slots, 4.0)
        await slots.acquire()
        queued = [asyncio.create_task(slots.acquire()) for _ in range(2)]
        await asyncio.sleep(1.0)
        assert slots.retry_after() == pytest.approx(3.0 + 2 * 4.0)
        for task in queued:
            task.cancel()

    run_virtual(main())


@pytest.mark.parametrize("seed", range(40))
def test_no_slot_is_lost_or_invented_whenever_callers_leave(seed: int) -> None:
    async def main() -> None:
        chance = random.Random(seed)
        slots, busy = Slots(3, 100), 0

        async def visit() -> None:
            nonlocal busy
            granted = await slots.acquire()
            busy += 1
            assert busy <= 3
            try:
                await asyncio.sleep(chance.choice([0, 1, 2]))
            finally:
                busy -= 1
                slots.release(granted)

        visitors = [asyncio.create_task(visit()) for _ in range(40)]
        for _ in range(60):
            chance.choice(visitors).cancel()
            await asyncio.sleep(chance.choice([0, 0, 0, 0.5, 1]))
        await asyncio.wait(visitors)
        assert (slots.free, slots.waiting, busy) == (3, 0, 0)

    run_virtual(main())


def test_a_waiter_cancelled_in_the_instant_of_its_turn_hands_it_on() -> None:
    async def main() -> None:
        slots = Slots(1, 5)
        granted = await slots.acquire()
        first, second = asyncio.create_task(slots.acquire()), asyncio.create_task(slots.acquire())
        await asyncio.sleep(0)
        slots.release(granted)
        first.cancel()
        await asyncio.wait_for(second, 1)
        with pytest.raises(asyncio.CancelledError):
            await first

    run_virtual(main())


def test_a_waiter_cancelled_just_before_a_slot_returns_leaves_no_trace() -> None:
    async def main() -> None:
        slots = Slots(1, 5)
        granted = await slots.acquire()
        waiter = asyncio.create_task(slots.acquire())
        await asyncio.sleep(0)
        waiter.cancel()
        slots.release(granted)
        with pytest.raises(asyncio.CancelledError):
            await waiter
        assert (slots.free, slots.waiting) == (1, 0)

    run_virtual(main())
