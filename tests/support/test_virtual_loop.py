from __future__ import annotations

import asyncio
import threading

import pytest

from tests.support.virtual_loop import DeadlockError, run_virtual


def test_the_clock_jumps_to_the_next_timer() -> None:
    async def main() -> list[tuple[str, float]]:
        loop = asyncio.get_running_loop()
        log: list[tuple[str, float]] = []

        async def nap(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            log.append((name, loop.time()))

        await asyncio.gather(nap("hour", 3600), nap("short", 0.25), nap("day", 86_400))
        return log

    assert run_virtual(main()) == [
        ("short", pytest.approx(0.25)),
        ("hour", pytest.approx(3600)),
        ("day", pytest.approx(86_400)),
    ]


def test_timeouts_and_threads_work() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 10)
        assert await asyncio.to_thread(threading.get_ident) != threading.get_ident()
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(10)


def test_a_deadlock_is_named() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(DeadlockError):
        run_virtual(main())


def test_a_task_left_behind_fails() -> None:
    async def main() -> None:
        task = asyncio.create_task(asyncio.sleep(9), name="forgotten")
        assert not task.done()

    with pytest.raises(RuntimeError, match="forgotten"):
        run_virtual(main())
