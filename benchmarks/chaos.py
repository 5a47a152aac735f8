"""Breaks a running service on purpose and checks that nobody notices: kills, hangs, departures, slow readers.

    python -m benchmarks.chaos [--model simulated|real] [--streams N] [--at-once N] [--period SECONDS] [--hangs]

Two endpoints that write the same text, two replicas each, on Ray Serve behind HTTP: simulated ones, or one small model
run by llama.cpp. Every ``--period`` seconds one replica is killed with SIGKILL, or (``--hangs``: every third time)
stopped for eight seconds. Each answer is compared with what the engine writes by itself, each report with its legs,
and the router's counters with what was asked of it. The last line is JSON; the exit code is 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

import aiohttp
import psutil
from prometheus_client.parser import text_string_to_metric_families

from actors.engines.factory import make_engine
from benchmarks.chaos_client import Errand, Judge, Seen, errands, rescues, run_errand, tally
from benchmarks.chaos_scenarios import REPLICAS, SCENARIOS, Scenario
from benchmarks.load import Spread
from benchmarks.processes import Server, python
from benchmarks.stack import free_ports, mode_environment, write_configuration
from serve_app.cli import ready
from serve_app.cli.signals import stop_by_signal

#: Seconds for which a replica is stopped.
HANG: Final = 8.0
#: Seconds between two looks for a replica that may be hit.
LOOK: Final = 0.5
#: How much the router may grow over the second half, as a share of what it had.
GROWTH: Final = 0.05
#: Lines of the router's log that are shown where it failed.
LOG_LINES: Final = 60


@dataclass
class Vandal:
    """Kills a replica every ``period`` seconds, or stops one for a while.

    Only one of an endpoint that has all of its own: a machine that is slow to start new ones is not left without any.
    """

    server: Server
    period: float
    hangs: bool
    kills: list[float] = field(default_factory=list)
    stops: int = 0

    async def rage(self) -> None:
        dice = random.Random(1)
        blows = 0
        while True:
            await asyncio.sleep(self.period)
            victim = dice.choice(await self._complete())
            blows += 1
            with suppress(psutil.NoSuchProcess):
                if self.hangs and blows % 3 == 0:
                    self.stops += 1
                    await self._stop_for_a_while(victim)
                else:
                    self.kills.append(time.monotonic())
                    victim.kill()

    async def _complete(self) -> list[psutil.Process]:
        """All replicas of the endpoints that have all of theirs."""
        while True:
            found = await asyncio.to_thread(self._replicas)
            complete = [replicas for replicas in found.values() if len(replicas) == REPLICAS]
            if complete:
                return [process for replicas in complete for process in replicas]
            await asyncio.sleep(LOOK)

    def _replicas(self) -> dict[str, list[psutil.Process]]:
        found: dict[str, list[psutil.Process]] = {}
        for process in self.server.processes():
            with suppress(psutil.NoSuchProcess):
                _, is_replica, name = " ".join(process.cmdline()).partition(":endpoint-")
                if is_replica:
                    found.setdefault(name.partition(".")[0].strip(), []).append(process)
        return found

    async def _stop_for_a_while(self, victim: psutil.Process) -> None:
        victim.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(HANG)
        finally:
            victim.send_signal(signal.SIGCONT)


@dataclass
class Scale:
    """The router's resident memory, once a second, in bytes."""

    router: psutil.Process
    bytes: list[int] = field(default_factory=list)

    async def weigh(self) -> None:
        while True:
            self.bytes.append(self.router.memory_info().rss)
            await asyncio.sleep(1.0)

    @property
    def growth(self) -> float:
        """Of the last quarter of the time against the third."""
        quarter = len(self.bytes) // 4
        third, last = self.bytes[2 * quarter : 3 * quarter], self.bytes[3 * quarter :]
        return median(last) / median(third) - 1 if third else 0.0


async def soak(server: Server, url: str, scenario: Scenario, arguments: argparse.Namespace) -> dict[str, Any]:
    gate = asyncio.Semaphore(arguments.at_once)
    router = next(p for p in server.processes() if "DiscoRouter" in " ".join(p.cmdline()))
    vandal, scale = Vandal(server, arguments.period, arguments.hangs), Scale(router)
    served = 0

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as http:

        async def one(errand: Errand) -> Seen:
            nonlocal served
            async with gate:
                found = await run_errand(http, url, errand)
            served += 1
            if served % 100 == 0:
                print(f"{served} of {arguments.streams}", file=sys.stderr)
            return found

        background = [asyncio.create_task(vandal.rage()), asyncio.create_task(scale.weigh())]
        began = time.monotonic()
        everyone = errands(arguments.streams, arguments.leaving, arguments.seed, scenario.max_tokens)
        seen = await asyncio.gather(*map(one, everyone))
        seconds = time.monotonic() - began
        for task in background:
            task.cancel()
        await asyncio.wait(background)
        wrong = await _settled(http, url, seen, scenario)
    await _judge(seen, scenario)
    if scale.growth > GROWTH:
        wrong.append(f"the router's memory grew by {scale.growth:.1%} over the last quarter")
    if any(s.error and s.error["code"] == "internal_error" for s in seen):
        print(_last_words(router), file=sys.stderr)
    rescued = rescues(seen, vandal.kills)
    ttfts = [leg["ttft_s"] for s in seen if s.report for leg in s.report["legs"] if leg["ttft_s"] is not None]
    return {
        "seconds": round(seconds, 1),
        "kills": len(vandal.kills),
        "stops": vandal.stops,
        **tally(seen),
        "kill_to_notice_ms": _spread([rescue.noticed for rescue in rescued]),
        "kill_to_token_ms": _spread([rescue.resumed for rescue in rescued]),
        "rescued_once": len(rescued),
        "ttft_ms": _spread(ttfts),
        "memory_growth": round(scale.growth, 4),
        "wrong": wrong + sorted({problem for s in seen for problem in s.problems}),
    }


async def _judge(seen: list[Seen], scenario: Scenario) -> None:
    """Afterwards, so that the judge takes nothing of the machine from those that it judges."""
    engine = make_engine(scenario.reference, 1, 1)
    await engine.start()
    try:
        judge = Judge(engine)
        for one in seen:
            await judge.judge(one)
    finally:
        await engine.close()


async def _settled(http: aiohttp.ClientSession, url: str, seen: list[Seen], scenario: Scenario) -> list[str]:
    """What is not as it must be once everybody is served."""
    for _ in range(100):
        counters = await _counters(http, url)
        if not counters["disco_streams_running"]:
            break
        await asyncio.sleep(0.2)
    wrong = []
    if counters["disco_streams_running"]:
        wrong.append(f"{counters['disco_streams_running']:g} streams still run")
    if counters["disco_requests_total"] != len(seen):
        wrong.append(f"{counters['disco_requests_total']:g} requests were counted of {len(seen)}")
    reported = sum(s.report["cost_usd"] for s in seen if s.report)
    if counters["disco_cost_usd_total"] < reported - 1e-9:
        wrong.append("the counted cost is less than what the reports say")
    slots = scenario.cloud.slots
    last = [run_errand(http, url, errand) for errand in errands(slots, 0.0, seed=99, max_tokens=scenario.max_tokens)]
    if any(s.end != "complete" for s in await asyncio.gather(*last)):
        wrong.append("afterwards not every slot was free")
    return wrong


async def _counters(http: aiohttp.ClientSession, url: str) -> dict[str, float]:
    """Each sample's sum over its labels."""
    async with http.get(f"{url}/metrics") as response:
        families = text_string_to_metric_families(await response.text())
    sums: dict[str, float] = {"disco_cost_usd_total": 0.0, "disco_requests_total": 0.0}
    for family in families:
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums


def _last_words(router: psutil.Process) -> str:
    """The end of its log, which Serve keeps in a file."""
    logs = [Path(file.path) for file in router.open_files() if "/serve/replica_" in file.path]
    texts = [log.read_text("utf-8", "replace") for log in logs]
    return "\n".join("\n".join(text.splitlines()[-LOG_LINES:]) for text in texts)


def _spread(seconds: list[float]) -> dict[str, float] | None:
    spread = Spread.of(seconds)
    return None if spread is None else {"p50": spread.p50, "p99": spread.p99}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Breaks a running service on purpose; checks that nobody notices.")
    parser.add_argument("--model", choices=SCENARIOS, default="simulated")
    parser.add_argument("--streams", type=int)
    parser.add_argument("--at-once", type=int)
    parser.add_argument("--period", type=float, help="seconds between two blows")
    parser.add_argument("--leaving", type=float, default=0.1, help="share of clients that go away")
    parser.add_argument("--hangs", action="store_true", help="stop every third victim instead of killing it")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    scenario = SCENARIOS[arguments.model]
    arguments.streams = arguments.streams or scenario.streams
    arguments.at_once = arguments.at_once or scenario.at_once
    arguments.period = arguments.period or scenario.period
    return arguments


def main() -> int:
    arguments = _arguments()
    scenario = SCENARIOS[arguments.model]
    (port,) = free_ports(1)
    with stop_by_signal(), tempfile.TemporaryDirectory(prefix="chaos") as directory:
        folder = Path(directory)
        write_configuration(folder / "chaos.yaml", port, *scenario.settings)
        environment = mode_environment(folder, haproxy=False)
        server = Server(python("benchmarks.stack", str(folder / "chaos.yaml")), environment, folder / "server.log")
        try:
            server.wait_until(lambda: _is_ready(port))
            result = asyncio.run(soak(server, f"http://127.0.0.1:{port}", scenario, arguments))
        finally:
            server.end()
    print(json.dumps(result))
    return 1 if result["wrong"] else 0


def _is_ready(port: int) -> bool:
    state = ready.ask(f"http://127.0.0.1:{port}")
    return state is not None and bool(state.warm) and not state.waiting


if __name__ == "__main__":
    sys.exit(main())
