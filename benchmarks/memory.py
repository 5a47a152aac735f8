"""What a running stream takes of memory, by process.

    python -m benchmarks.memory [--streams 200]

Streams of a simulated endpoint, as slow as their readers, behind HAProxy. First a quarter of them, so that what grows
once has grown, then all: the memory that no other process shares, over the number of streams that came to it. What
streams leave is kept by the allocators for the next, so only more of them than ever show what one takes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Final

from rich.console import Console

from benchmarks.dataplane import PACED_RATE, serving
from benchmarks.load import Load, connected
from benchmarks.processes import Server

#: Tokens of an answer; it lasts ten minutes at the readers' speed.
TOKENS: Final = 2880

#: Seconds in which all streams have begun, and in which what they left has gone.
BEGIN: Final = 10.0
SETTLE: Final = 5.0


async def with_streams(server: Server, port: int, streams: int) -> dict[str, int]:
    """Bytes by role while that many run; all have ended when this returns."""
    load = Load(streams, TOKENS, 0.0, PACED_RATE)
    clients = [await connected(f"127.0.0.1:{port}", load) for _ in range(streams)]
    try:
        for client in clients:
            client.send()
        await asyncio.sleep(BEGIN)
        running = sum(bool(client.record(TOKENS).arrivals) for client in clients)
        if running < streams:
            raise RuntimeError(f"only {running} of {streams} streams began within {BEGIN:g} s")
        return await asyncio.to_thread(server.memory)
    finally:
        for client in clients:
            client.close()
        await asyncio.sleep(SETTLE)


async def measure(server: Server, port: int, streams: int) -> dict[str, float]:
    """KiB per stream, by role."""
    few = streams // 4
    before, after = [await with_streams(server, port, number) for number in (few, streams)]
    return {role: round((after[role] - before.get(role, 0)) / (streams - few) / 1024, 1) for role in sorted(after)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Memory of a running stream, by process.")
    parser.add_argument("--streams", type=int, default=200)
    streams = parser.parse_args().streams
    with serving(True, streams) as (server, port):
        resting = server.memory()
        found = asyncio.run(measure(server, port, streams))
    console = Console()
    for role, kib in found.items():
        base = resting.get(role, 0) / 2**20
        console.print(f"{role}: {kib:.1f} KiB per stream, {base:.0f} MiB without any", highlight=False)
    print(json.dumps({"kib_per_stream": found, "streams": streams}))


if __name__ == "__main__":
    main()
