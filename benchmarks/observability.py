"""What traces and metrics cost: CPU per token and time to first token, with all of it on against all of it off.

    python -m benchmarks.observability [--rounds 6] [--pairs 150] [--streams 10] [--seconds 5] [--quick]

Two whole stacks stand side by side and are loaded in turns, the first of each pair alternating, so that whatever else
the machine does hits both. On: every request is traced, a collector takes the spans, the router's metrics go to Ray too
and are scraped every second. A round's CPU is that of all the stack's processes from before its first request until its
last spans have gone, beyond what it uses at rest. First tokens are those of single requests, in turns. The last line is
JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp
from rich.console import Console
from rich.table import Table

from benchmarks.collector import Collector, collecting
from benchmarks.dataplane import RAMP, RATE, SCHEDULE, SETTLE, settings
from benchmarks.load import Load, connected, drive, idle
from benchmarks.processes import Server, python
from benchmarks.stack import free_ports, mode_environment, write_configuration
from serve_app.cli import ready
from serve_app.settings import TelemetrySettings

#: Seconds within which the spans of a round have left the replicas: they wait for company for half a second.
FLUSH: Final = 1.5

#: Seconds between two scrapes; fifteen are usual.
SCRAPE: Final = 1.0

#: Tokens of an answer that is asked for because of its first one.
FIRST: Final = 2

#: What all of it may add: CPU per token as a share, and the median time to first token in milliseconds.
CPU_LIMIT: Final = 0.10
TTFT_LIMIT: Final = 1.0


@dataclass
class Arm:
    """One of the two stacks. cpu_us: microseconds per token, by round. ttft: milliseconds beyond the engine's own."""

    name: str
    server: Server
    port: int
    resting: float = 0.0
    cpu_us: list[float] = field(default_factory=list)
    ttft: list[float] = field(default_factory=list)

    async def rest(self) -> None:
        self.resting = sum((await idle(self.server, SETTLE)).values())

    async def round(self, load: Load) -> None:
        before, began = await asyncio.to_thread(self.server.cpu), time.monotonic()
        async with contextlib.AsyncExitStack() as stack:
            if self.name == "on":
                scraping = asyncio.create_task(_scrape(self.port))
                stack.callback(scraping.cancel)
            run = await drive(self.server, self.port, load, SCHEDULE)
            await asyncio.sleep(FLUSH)
        spent = sum((await asyncio.to_thread(self.server.cpu)).since(before).values())
        tokens = sum(record.arrivals[-1].tokens for record in run.records)
        beyond = spent - self.resting * (time.monotonic() - began)
        self.cpu_us.append(beyond / tokens * 1e6)

    async def first_token(self, load: Load) -> None:
        """Of one request, while nothing else is asked."""
        client = await connected(f"127.0.0.1:{self.port}", load)
        client.send()
        await client.done.wait()
        client.close()
        record = client.record(load.tokens)
        self.ttft.append((record.arrivals[0].at - record.sent - SCHEDULE.first) * 1e3)


async def _scrape(port: int) -> None:
    async with aiohttp.ClientSession() as http:
        while True:
            async with http.get(f"http://127.0.0.1:{port}/metrics") as response:
                await response.read()
            await asyncio.sleep(SCRAPE)


@contextmanager
def standing(name: str, streams: int, telemetry: TelemetrySettings, directory: Path) -> Iterator[Arm]:
    app, live = settings(streams)
    (port,) = free_ports(1)
    configuration = directory / f"{name}.yaml"
    write_configuration(configuration, port, app.model_copy(update={"telemetry": telemetry}), live)
    environment = mode_environment(directory, haproxy=False)
    server = Server(python("benchmarks.stack", str(configuration)), environment, directory / f"{name}.log")
    try:
        server.wait_until(lambda: (state := ready.ask(f"http://127.0.0.1:{port}")) is not None and state.ready)
        yield Arm(name, server, port)
    finally:
        server.end()


async def play(off: Arm, on: Arm, load: Load, rounds: int, pairs: int) -> None:
    await asyncio.sleep(SETTLE)
    await off.rest()
    await on.rest()
    for turn in range(rounds):
        for arm in (off, on) if turn % 2 == 0 else (on, off):
            await arm.round(load)
    for turn in range(pairs):
        for arm in (off, on) if turn % 2 == 0 else (on, off):
            await arm.first_token(Load(1, FIRST, 0.0))


def figures(off: Arm, on: Arm, collector: Collector, load: Load) -> dict[str, object]:
    """Medians over rounds and requests; of the CPU, what is added is the median over pairs of rounds."""
    cpu = [b / a - 1 for a, b in zip(off.cpu_us, on.cpu_us, strict=True)]
    ttft = statistics.median(on.ttft) - statistics.median(off.ttft)
    return {
        "rounds": len(cpu),
        "streams": load.streams,
        "tokens_per_stream": load.tokens,
        "spans": len(collector.spans()),
        "cpu_us_per_token_off": round(statistics.median(off.cpu_us), 1),
        "cpu_us_per_token_on": round(statistics.median(on.cpu_us), 1),
        "cpu_added_share": round(statistics.median(cpu), 4),
        "cpu_added_by_round": [round(each, 3) for each in cpu],
        "ttft_added_to_schedule_ms_off": round(statistics.median(off.ttft), 3),
        "ttft_added_to_schedule_ms_on": round(statistics.median(on.ttft), 3),
        "ttft_p50_added_ms": round(ttft, 3),
        "ttft_requests": len(off.ttft) + len(on.ttft),
        "within_limits": statistics.median(cpu) <= CPU_LIMIT and ttft <= TTFT_LIMIT,
    }


def table(found: dict[str, object]) -> Table:
    shown = Table("", "off", "on", "added", "allowed", title="Medians")
    cpu, ttft = found["cpu_added_share"], found["ttft_p50_added_ms"]
    off, on = found["cpu_us_per_token_off"], found["cpu_us_per_token_on"]
    shown.add_row("CPU, microseconds per token", str(off), str(on), f"{cpu:.1%}", f"{CPU_LIMIT:.0%}")
    off, on = found["ttft_added_to_schedule_ms_off"], found["ttft_added_to_schedule_ms_on"]
    shown.add_row("first token after the engine's, ms", str(off), str(on), f"{ttft} ms", f"{TTFT_LIMIT} ms")
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description="What traces and metrics cost.")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--pairs", type=int, default=150, help="requests of each, one by one, for the first token")
    parser.add_argument("--streams", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each stream lasts")
    parser.add_argument("--quick", action="store_true", help="a look, not a measurement: 2 rounds of 5 streams")
    arguments = parser.parse_args()
    rounds, streams = (2, 5) if arguments.quick else (arguments.rounds, arguments.streams)
    load = Load(streams, round(arguments.seconds * RATE), RAMP)
    console = Console(width=120)
    console.print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.2f}", highlight=False)
    with tempfile.TemporaryDirectory(prefix="ob-", dir="/tmp") as folder, ExitStack() as stack:
        directory = Path(folder)
        collector = stack.enter_context(collecting(directory / "spans"))
        all_of_it = TelemetrySettings(otlp_endpoint=collector.http, ray_metrics=True)
        off = stack.enter_context(standing("off", streams, TelemetrySettings(), directory))
        on = stack.enter_context(standing("on", streams, all_of_it, directory))
        asyncio.run(play(off, on, load, rounds, arguments.pairs))
        found = figures(off, on, collector, load)
    console.print(table(found))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
