"""What the data plane adds to each token: latency at the client, and CPU time of all the server's processes.

    python -m benchmarks.dataplane [--streams 50] [--seconds 20] [--quick] [--only NAME ...]

One simulated endpoint whose schedule is known to the microsecond, and N streams of it at once: behind plain uvicorn as
the reference, then through the whole stack. Every server is a process of its own on a free loopback port. The client's
own CPU is not counted, but it shares the machine, and so does everything else that runs. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.load import Figures, Load, Schedule, Spread, drive, figures, idle
from benchmarks.processes import Server, python
from benchmarks.stack import free_ports, mode_environment, write_configuration
from serve_app.cli import ready
from serve_app.core.model import EndpointKind
from serve_app.core.policies import PolicyName
from serve_app.engine_settings import SimulatedEngineSettings
from serve_app.settings import (
    AppSettings,
    EndpointSettings,
    LiveSettings,
    MigrationSettings,
    PolicySettings,
    ReaderSettings,
)

RATE: Final = 20.0
PACED_RATE: Final = 4.8

#: Seconds over which the streams' starts are spread.
RAMP: Final = 1.0

#: Seconds after which a server that has just become ready is at rest.
SETTLE: Final = 5.0

#: Tokens that fit the simulated engine's context.
MOST_TOKENS: Final = 4000


@dataclass(frozen=True, slots=True)
class Variant:
    """``haproxy``: None is the reference. ``rate``: the reader's, None where the delivery is eager."""

    name: str
    haproxy: bool | None
    rate: float | None = None


VARIANTS: Final = (
    Variant("reference", None),
    Variant("laptop eager", haproxy=False),
    Variant("laptop paced", haproxy=False, rate=PACED_RATE),
    Variant("haproxy eager", haproxy=True),
    Variant("haproxy paced", haproxy=True, rate=PACED_RATE),
)


def engine_settings() -> SimulatedEngineSettings:
    return SimulatedEngineSettings(
        prefill_rate=1e6,
        decode_rate=RATE,
        overhead=0.001,
        jitter=0.0,
        output_tokens=(2 * MOST_TOKENS, 2 * MOST_TOKENS),
        can_park=False,
    )


SCHEDULE: Final = Schedule(engine_settings().overhead + 1 / RATE, 1 / RATE)


def settings(streams: int) -> tuple[AppSettings, LiveSettings]:
    """One endpoint with room for all, and a limit so high that no eager stream ever pauses."""
    slots = streams + 2
    endpoint = EndpointSettings(kind=EndpointKind.CLOUD, engine=engine_settings(), slots=slots)
    live = LiveSettings(
        policy=PolicySettings(name=PolicyName.CLOUD_ONLY),
        migration=MigrationSettings(mode="off"),
        reader=ReaderSettings(ahead_tokens=65_536),
    )
    return AppSettings(endpoints={"simulated": endpoint}), live


@contextmanager
def serving(haproxy: bool | None, streams: int) -> Iterator[tuple[Server, int]]:
    """A server that answers, and its port."""
    directory = Path(tempfile.mkdtemp(prefix="dp-", dir="/tmp"))
    (port,) = free_ports(1)
    try:
        if haproxy is None:
            arguments = [str(port), engine_settings().model_dump_json()]
            server = Server(python("benchmarks.reference", *arguments), {}, directory / "log")
        else:
            configuration = directory / "stack.yaml"
            write_configuration(configuration, port, *settings(streams))
            environment = mode_environment(directory, haproxy=haproxy)
            server = Server(python("benchmarks.stack", str(configuration)), environment, directory / "log")
        try:
            server.wait_until(lambda: (state := ready.ask(f"http://127.0.0.1:{port}")) is not None and state.ready)
            yield server, port
        finally:
            server.end()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def measure(variants: list[Variant], streams: int, seconds: float, console: Console) -> dict[str, dict[str, Any]]:
    """Variants of the same mode share a server, and all stream the same answers, eager ones for ``seconds``."""
    tokens = min(MOST_TOKENS, round(seconds * RATE))
    results: dict[str, dict[str, Any]] = {}
    for haproxy in dict.fromkeys(variant.haproxy for variant in variants):
        with serving(haproxy, streams) as (server, port):
            time.sleep(SETTLE if haproxy is not None else 0.0)
            resting = asyncio.run(idle(server, seconds))
            for variant in (each for each in variants if each.haproxy is haproxy):
                load = Load(streams, tokens, RAMP, variant.rate)
                before = os.getloadavg()[0]
                found = figures(asyncio.run(drive(server, port, load, SCHEDULE)), load, SCHEDULE, resting)
                results[variant.name] = asdict(found) | {
                    "tokens_per_stream": tokens,
                    "idle_cpu_share": round(sum(resting.values()), 4),
                    "load_before": round(before, 2),
                }
                console.print(_line(variant.name, found), highlight=False, soft_wrap=True)
    return results


def _line(name: str, found: Figures) -> str:
    roles = ", ".join(f"{role} {spent:.0f}" for role, spent in found.cpu_us_by_role.items())
    return f"{name}: {found.complete}/{found.streams} complete, CPU us/token: {roles}"


def table(results: dict[str, dict[str, Any]]) -> Table:
    shown = Table(title="p50 / p99 in ms; CPU of all server processes in microseconds per generated token")
    for title in (
        "variant",
        "TTFT added",
        "ITL added",
        "lateness",
        "events/token",
        "CPU us/token",
        "beyond idle",
        "generating",
        "complete",
    ):
        shown.add_column(title, justify="left" if title == "variant" else "right")
    for name, found in results.items():
        spreads = [_spread(found[key]) for key in ("ttft_added", "itl_added", "lateness")]
        complete = f"{found['complete']}/{found['streams']}"
        cpu = (f"{found[key]:.0f}" for key in ("cpu_us", "cpu_us_beyond_idle", "cpu_us_generating"))
        shown.add_row(name, *spreads, f"{found['events_per_token']:.2f}", *cpu, complete)
    return shown


def _spread(value: dict[str, float] | None) -> str:
    spread = Spread(**value) if value else None
    return f"{spread.p50:.2f} / {spread.p99:.2f}" if spread else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description="Latency and CPU per token of the whole stack.")
    parser.add_argument("--streams", type=int, default=50)
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="of an eager stream; a paced one takes four times as long"
    )
    parser.add_argument("--quick", action="store_true", help="a look, not a measurement: 10 streams of 5 seconds")
    parser.add_argument("--only", nargs="*", choices=[variant.name for variant in VARIANTS])
    arguments = parser.parse_args()
    streams, seconds = (10, 5.0) if arguments.quick else (arguments.streams, arguments.seconds)
    console = Console(width=120)
    console.print(f"{streams} streams, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.2f}", highlight=False)
    chosen = [variant for variant in VARIANTS if not arguments.only or variant.name in arguments.only]
    results = measure(chosen, streams, seconds, console)
    console.print(table(results))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
