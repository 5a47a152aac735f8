"""Clients on a host of their own, and what became of their streams."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import aiohttp

from actors.engines.simulated import SimulatedEngine
from benchmarks.chaos_client import Errand, Judge, Seen, follow
from benchmarks.hosts.cluster import Cluster
from benchmarks.hosts.twin import KEY, WRITER


@dataclass
class Visit:
    """One errand and when it began, by ``time.monotonic``. ``ttft``: seconds until the client had text."""

    seen: Seen
    began: float

    @property
    def ttft(self) -> float | None:
        return self.seen.arrivals[0][0] - self.began if self.seen.arrivals else None

    @property
    def streams(self) -> bool:
        return bool(self.seen.arrivals) and self.seen.end == "silence"


@dataclass
class Crowd:
    """``at_once`` errands at a time, each as soon as there is room for it.

    apart: seconds to wait after each start.
    """

    cluster: Cluster
    errands: Sequence[Errand]
    at_once: int
    apart: Sequence[float] = ()
    visits: list[Visit] = field(default_factory=list)
    _played: Future[None] | None = None

    def start(self) -> Crowd:
        self._played = self.cluster.client.soon(self._play)
        return self

    def wait(self) -> list[Seen]:
        """What all of them saw, judged."""
        assert self._played is not None
        self._played.result()
        return [visit.seen for visit in self.visits]

    @property
    def over(self) -> bool:
        return self._played is not None and self._played.done()

    @property
    def streaming(self) -> list[Visit]:
        """Those amid their answer."""
        return [visit for visit in self.visits if visit.streams]

    async def _play(self) -> None:
        gate = asyncio.Semaphore(self.at_once)
        judge = Judge(SimulatedEngine(WRITER.model_copy(update={"prefill_rate": 1e9, "decode_rate": 1e9})))
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        headers = {"Authorization": f"Bearer {KEY}"}

        async with aiohttp.ClientSession(connector=connector, headers=headers) as http:

            async def one(errand: Errand) -> None:
                visit = Visit(Seen(errand), time.monotonic())
                self.visits.append(visit)
                try:
                    await follow(http, self.cluster.url, visit.seen)
                finally:
                    gate.release()
                await judge.judge(visit.seen)

            async with asyncio.TaskGroup() as tasks:
                for errand, pause in zip(self.errands, self.apart or repeat(0.0), strict=False):
                    await gate.acquire()
                    tasks.create_task(one(errand))
                    await asyncio.sleep(pause)


def moves(seen: Seen) -> list[tuple[str, str, str]]:
    """From, to and why of every move that was completed."""
    report: dict[str, Any] = seen.report or {}
    return [(m["from"], m["to"], m["reason"]) for m in report.get("migrations", ()) if m["outcome"] == "completed"]
