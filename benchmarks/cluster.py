"""The cluster's configuration over seven hosts of namespaces and a slow network: what faults and policies do there.

    python -m benchmarks.cluster faults [--streams 500] [--at-once 8]
    python -m benchmarks.cluster policies [--requests 150] [--apart 1.0]

``faults``: streams under delay, jitter and loss, while the cloud is cut off for ten seconds and a device's node loses
its power for half a minute. Every text is compared with what the engine writes by itself, and newcomers follow each
fault. ``policies``: the same questions to DiSCo, to the cloud alone and to the devices alone, one after the other on
the same hosts. Needs root; the engines are simulated and timed by measured profiles. The last line is JSON; the exit
code is 1 if anything was not as it must be.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.chaos_client import Errand, Seen, tally
from benchmarks.hosts.cluster import NODES, Cluster, cluster
from benchmarks.hosts.crowd import Crowd, moves
from benchmarks.hosts.line import Condition
from benchmarks.hosts.machine import until, why_not
from benchmarks.hosts.twin import live, twin
from benchmarks.regimes import prompts
from serve_app.cli.signals import stop_by_signal
from serve_app.core.policies import PolicyName

#: What each host's line does to packets in each direction; a packet between two hosts passes both their lines.
WAN: Final = {
    "cloud": Condition(delay=0.04, jitter=0.01, loss=0.01),
    "arm1": Condition(delay=0.02, jitter=0.01, loss=0.01),
    "arm2": Condition(delay=0.08, jitter=0.02, loss=0.01),
    "client": Condition(delay=0.01, jitter=0.005, loss=0.01),
}
#: Seconds for which the cloud is cut off, for which the device is without power, and within which newcomers have text.
CUT: Final = 10.0
OFF: Final = 30.0
SOON: Final = 5.0
#: Requests that follow a fault, and seconds between two of them.
NEWCOMERS: Final = 10
BETWEEN: Final = 0.5

_POLICIES: Final = (PolicyName.AUTO, PolicyName.CLOUD_ONLY, PolicyName.DEVICE_ONLY)
_DISPATCHED: Final = {"dispatch", "hedge", "retry"}


def go_wide(hosts: Cluster) -> None:
    for name, condition in WAN.items():
        hosts.network.set(name, condition)


# --- faults -----------------------------------------------------------------------------------------------------


def faults(hosts: Cluster, streams: int, at_once: int, seed: int) -> dict[str, Any]:
    dice = random.Random(seed)
    errands = [Errand(number, dice.randint(20, 100), dice.choice([4.8, 20.0])) for number in range(streams)]
    crowd = Crowd(hosts, errands, at_once).start()

    until(lambda: len(crowd.visits) >= streams // 4, 600, 0.05)
    cut_at = time.monotonic()
    hosts.network.set("cloud", Condition(cut=True))
    after_cut = newcomers(hosts, 1)
    time.sleep(CUT)
    hosts.network.set("cloud", WAN["cloud"])

    until(lambda: len(crowd.visits) >= streams // 2, 600, 0.05)
    killed_at = time.monotonic()
    hosts.network.power_off("arm1")
    after_kill = newcomers(hosts, 2)
    time.sleep(OFF)
    hosts.power_on(next(node for node in NODES if node.name == "arm1"))
    hosts.network.set("arm1", WAN["arm1"])

    seen = crowd.wait()
    refused = [s for each in (after_cut, after_kill) for s in each.wait() if s.problems or s.end != "complete"]
    return {
        "streams": streams,
        "at_once": at_once,
        "wrong_texts": sum("wrong text" in s.problems or "incomplete text" in s.problems for s in seen),
        "hangs": sum(s.end == "hang" for s in seen),
        "failed": sum(s.end != "complete" for s in seen),
        "other_problems": sorted({p for s in seen for p in s.problems if s.end == "complete"}),
        "rescued": sum(any(why == "rescue" for _, _, why in moves(s)) for s in seen),
        "cut_to_newcomers_text_s": _first_text(after_cut, cut_at),
        "cut_newcomers_slowest_ttft_s": _slowest(after_cut),
        "kill_to_newcomers_text_s": _first_text(after_kill, killed_at),
        "kill_newcomers_slowest_ttft_s": _slowest(after_kill),
        "newcomers_failed": len(refused),
        "longest_gap_s": round(max(_longest_gap(s) for s in seen), 2),
        **tally(seen),
    }


def newcomers(hosts: Cluster, seed: int) -> Crowd:
    errands = [Errand(10**6 * seed + number, 4, None) for number in range(NEWCOMERS)]
    return Crowd(hosts, errands, NEWCOMERS, apart=[BETWEEN] * NEWCOMERS).start()


def _first_text(crowd: Crowd, fault: float) -> float:
    return round(min(visit.seen.arrivals[0][0] for visit in crowd.visits if visit.seen.arrivals) - fault, 2)


def _slowest(crowd: Crowd) -> float:
    return round(max(visit.ttft for visit in crowd.visits if visit.ttft is not None), 2)


def _longest_gap(seen: Seen) -> float:
    times = [at for at, _ in seen.arrivals]
    return max((after - before for before, after in pairwise(times)), default=0.0)


def is_sound(figures: dict[str, Any]) -> bool:
    wrong = any(figures[key] for key in ("wrong_texts", "hangs", "failed", "newcomers_failed", "other_problems"))
    return not wrong and max(figures["cut_to_newcomers_text_s"], figures["kill_to_newcomers_text_s"]) <= SOON


# --- policies ---------------------------------------------------------------------------------------------------


def policies(hosts: Cluster, requests: int, apart: float, seed: int) -> dict[str, Any]:
    """Arrivals are Poisson's, the same ones for each policy."""
    dice = random.Random(seed)
    errands = [
        Errand(number, dice.randint(20, 60), 4.8, question=question)
        for number, question in enumerate(prompts(requests))
    ]
    pauses = [dice.expovariate(1 / apart) for _ in errands]
    figures = {}
    for policy in _POLICIES:
        document = twin()
        live(document)["policy"] = live(document).get("policy", {}) | {"name": policy.value}
        hosts.deploy(document)
        # What the planner believes at first is a guess; the first tenth of the answers teaches it, and is not counted.
        learning = Crowd(hosts, errands[: requests // 10], at_once=8).start()
        learning.wait()
        crowd = Crowd(hosts, errands, at_once=requests, apart=pauses).start()
        crowd.wait()
        figures[policy.value] = latency(crowd)
    return figures


def latency(crowd: Crowd) -> dict[str, Any]:
    """As the client's host sees it; shares are of prompt tokens, of all requests that were answered."""
    whole = [visit for visit in crowd.visits if visit.seen.end == "complete"]
    ttfts = np.array([visit.ttft for visit in whole])
    reports = [visit.seen.report or {} for visit in whole]
    asked = sum(report["prompt_tokens"] for report in reports)
    spent = Counter[str]()
    for leg in (leg for report in reports for leg in report["legs"] if leg["reason"] in _DISPATCHED):
        spent[leg["kind"]] += leg["prefill_tokens"]
    return {
        "requests": len(crowd.visits),
        "complete": len(whole),
        "wrong": sum(bool(visit.seen.problems) for visit in whole),
        "ttft_mean_s": round(float(ttfts.mean()), 3),
        "ttft_p50_s": round(float(np.quantile(ttfts, 0.5)), 3),
        "ttft_p99_s": round(float(np.quantile(ttfts, 0.99)), 3),
        "cloud_prompt_share": round(spent["cloud"] / asked, 3),
        "device_prompt_share": round(spent["device"] / asked, 3),
        "cost_usd": round(sum(report["cost_usd"] for report in reports), 6),
        "delayed_tokens": sum(report["delay_num"] for report in reports),
    }


# --- both -------------------------------------------------------------------------------------------------------


def show(columns: dict[str, dict[str, Any]]) -> None:
    table = Table("figure", *columns)
    for key in dict.fromkeys(key for column in columns.values() for key in column):
        table.add_row(key, *(str(column.get(key, "")) for column in columns.values()))
    Console().print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The cluster's configuration over hosts of namespaces and a WAN.")
    parser.add_argument("what", choices=["faults", "policies"])
    parser.add_argument("--streams", type=int, default=500, help="faults: how many")
    parser.add_argument("--at-once", type=int, default=8, help="faults: streams under way")
    parser.add_argument("--requests", type=int, default=150, help="policies: for each")
    parser.add_argument("--apart", type=float, default=1.0, help="policies: mean seconds between two arrivals")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    lack = why_not()
    if lack is not None:
        print(f"no hosts here: {lack}", file=sys.stderr)
        return 3
    with stop_by_signal(), cluster(NODES) as hosts:
        hosts.deploy(twin())
        hosts.wait_ready()
        go_wide(hosts)
        if options.what == "faults":
            result = faults(hosts, options.streams, options.at_once, options.seed)
            show({"faults": result})
            sound = is_sound(result)
        else:
            result = policies(hosts, options.requests, options.apart, options.seed)
            show(result)
            sound = not any(figures["wrong"] for figures in result.values())
    print(json.dumps(result))
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
