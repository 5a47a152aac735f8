"""N streams at once against one server, and what each token cost in time and CPU."""

from __future__ import annotations

import asyncio
import gc
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.processes import CpuReading, Server
from benchmarks.sse_client import StreamClient, StreamRecord

_PROMPT = "the bridge over the river follows a narrow road"


@dataclass(frozen=True, slots=True)
class Schedule:
    """When the engine owes its tokens: the first ``first`` seconds after the request, then one per ``gap`` seconds."""

    first: float
    gap: float


@dataclass(frozen=True, slots=True)
class Load:
    """``streams`` requests of ``tokens`` tokens each, their starts spread over ``ramp`` seconds by the seed.

    rate: the reader's tokens per second where the delivery is paced, None where it is eager.
    """

    streams: int
    tokens: int
    ramp: float
    rate: float | None = None
    seed: int = 0

    def body(self) -> bytes:
        disco: dict[str, Any] = {"consumption_rate": self.rate, "delivery": "paced" if self.rate else "eager"}
        return json.dumps(
            {
                "model": "disco",
                "stream": True,
                "max_tokens": self.tokens,
                "messages": [{"role": "user", "content": _PROMPT}],
                "disco": disco,
            }
        ).encode()


@dataclass(frozen=True, slots=True)
class Run:
    """``cpu``: seconds by role over a window of ``window`` seconds in which ``cpu_tokens`` tokens were generated.

    cpu_generating: paced streams only: seconds of all roles until the last of those tokens was generated. By then the
        reader has seen a quarter of them.
    """

    records: Sequence[StreamRecord]
    cpu: dict[str, float]
    window: float
    cpu_tokens: int
    cpu_generating: float | None = None


async def drive(server: Server, port: int, load: Load, schedule: Schedule) -> Run:
    """Eager: the CPU window lies between the last start and the first end. Paced: it is the streams' whole life."""
    host = f"127.0.0.1:{port}"
    await _one(host, Load(1, 8, 0.0, load.rate))
    clients = [await connected(host, load) for _ in range(load.streams)]
    starts = random.Random(load.seed)
    offsets = sorted(starts.uniform(0.0, load.ramp) for _ in clients)
    loop = asyncio.get_running_loop()
    generating = None
    gc.disable()
    try:
        before = server.cpu()
        began = opened = loop.time()
        for client, offset in zip(clients, offsets, strict=True):
            loop.call_at(began + offset, client.send)
        if load.rate is None:
            await asyncio.sleep(load.ramp + schedule.first + 0.5)
            before, opened = await asyncio.to_thread(server.cpu), loop.time()
            await asyncio.sleep(max(0.0, began + load.tokens * schedule.gap - 0.25 - loop.time()))
            after, ended = await asyncio.to_thread(server.cpu), loop.time()
            await _finish(clients, load, schedule)
            records = [client.record(load.tokens) for client in clients]
            generated = round(load.streams * (ended - opened) / schedule.gap)
        else:
            await asyncio.sleep(load.ramp + schedule.first + load.tokens * schedule.gap)
            generating = sum((await asyncio.to_thread(server.cpu)).since(before).values())
            await _finish(clients, load, schedule)
            after, ended = await asyncio.to_thread(server.cpu), loop.time()
            records = [client.record(load.tokens) for client in clients]
            generated = sum(record.arrivals[-1].tokens for record in records if record.arrivals)
    finally:
        gc.enable()
        for client in clients:
            client.close()
    return Run(records, after.since(before), ended - opened, generated, generating)


async def idle(server: Server, seconds: float) -> dict[str, float]:
    """CPU seconds per second, by role, of a server without streams."""
    before: CpuReading = server.cpu()
    await asyncio.sleep(seconds)
    return {role: spent / seconds for role, spent in server.cpu().since(before).items()}


async def _finish(clients: Sequence[StreamClient], load: Load, schedule: Schedule) -> None:
    """A server that is hopelessly late is measured as incomplete, not waited for."""
    life = load.tokens * max(schedule.gap, 1 / load.rate if load.rate else 0.0)
    done = [asyncio.create_task(client.done.wait()) for client in clients]
    _, late = await asyncio.wait(done, timeout=load.ramp + 2 * life + 30.0)
    for task in late:
        task.cancel()


async def connected(host: str, load: Load) -> StreamClient:
    name, _, port = host.rpartition(":")
    client = StreamClient(host, "/v1/chat/completions", load.body())
    await asyncio.get_running_loop().create_connection(lambda: client, name, int(port))
    return client


async def _one(host: str, load: Load) -> None:
    client = await connected(host, load)
    client.send()
    await client.done.wait()
    client.close()
    if not client.record(load.tokens).complete:
        raise RuntimeError("the server's first answer was not complete")


@dataclass(frozen=True, slots=True)
class Spread:
    """Milliseconds."""

    p50: float
    p99: float

    @staticmethod
    def of(seconds: Sequence[float]) -> Spread | None:
        if not seconds:
            return None
        p50, p99 = np.percentile(np.asarray(seconds) * 1e3, [50, 99])
        return Spread(round(float(p50), 3), round(float(p99), 3))


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run shows; each Spread over all streams.

    ttft_added: first text after the request, beyond the engine's schedule.
    itl_added: eager: the gap between two events beyond what the engine took for the later one's tokens. Paced: the gap
        between two tokens as a reader with ``rate`` sees them, beyond 1 / rate.
    lateness: eager: a token's arrival against the engine's schedule, counted from the request. Paced: against the
        instant the reader wants it (paper 8); negative is early.
    cpu_us: microseconds of CPU per generated token, of all the server's processes and by role.
    cpu_us_beyond_idle: the same without what the server uses in that time when it has no streams, which Ray's processes
        do for their timers. Paced streams last four times as long for the same tokens and carry four times as much.
    cpu_us_generating: paced: the same tokens, but only the CPU used until the last of them was generated; what it costs
        to hold most of them back and pass on those that are due. Eager: as ``cpu_us``.
    """

    streams: int
    complete: int
    ttft_added: Spread | None
    itl_added: Spread | None
    lateness: Spread | None
    events_per_token: float
    cpu_us: float
    cpu_us_beyond_idle: float
    cpu_us_generating: float
    cpu_us_by_role: dict[str, float]


def figures(run: Run, load: Load, schedule: Schedule, resting: dict[str, float]) -> Figures:
    """``resting``: what ``idle`` found on this server."""
    ttft, itl, late = [], [], []
    for record in run.records:
        if not record.arrivals:
            continue
        first = record.arrivals[0]
        ttft.append(first.at - record.sent - schedule.first - (first.tokens - 1) * schedule.gap)
        gaps, delays = (_eager if load.rate is None else _paced)(record, schedule, load.rate or 0.0)
        itl += gaps
        late += delays
    shown = sum(record.arrivals[-1].tokens for record in run.records if record.arrivals)
    events = sum(len(record.arrivals) for record in run.records)
    by_role = {role: round(each / run.cpu_tokens * 1e6, 1) for role, each in sorted(run.cpu.items())}
    spent = sum(run.cpu.values())
    generating = spent if run.cpu_generating is None else run.cpu_generating
    return Figures(
        streams=load.streams,
        complete=sum(record.complete for record in run.records),
        ttft_added=Spread.of(ttft),
        itl_added=Spread.of(itl),
        lateness=Spread.of(late),
        events_per_token=round(events / max(1, shown), 3),
        cpu_us=round(spent / run.cpu_tokens * 1e6, 1),
        cpu_us_beyond_idle=round((spent - sum(resting.values()) * run.window) / run.cpu_tokens * 1e6, 1),
        cpu_us_generating=round(generating / run.cpu_tokens * 1e6, 1),
        cpu_us_by_role=by_role,
    )


def _eager(record: StreamRecord, schedule: Schedule, _: float) -> tuple[list[float], list[float]]:
    """A token inside a character shows with the character's last one, so an event counts by its last token."""
    pairs = zip(record.arrivals, record.arrivals[1:], strict=False)
    gaps = [after.at - before.at - (after.tokens - before.tokens) * schedule.gap for before, after in pairs]
    owed = record.sent + schedule.first
    return gaps, [arrival.at - owed - (arrival.tokens - 1) * schedule.gap for arrival in record.arrivals]


def _paced(record: StreamRecord, _: Schedule, rate: float) -> tuple[list[float], list[float]]:
    origin = record.arrivals[0].at
    gaps, late = [], []
    shown, read_at = 0, origin
    for arrival in record.arrivals:
        for token in range(shown, arrival.tokens):
            late.append(arrival.at - origin - token / rate)
            if token:
                reads = max(arrival.at, read_at + 1 / rate)
                gaps.append(reads - read_at - 1 / rate)
                read_at = reads
        shown = arrival.tokens
    return gaps, late
