"""What clients of the cluster do, and what must be true of it and of them."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.chaos_client import Errand, Seen
from benchmarks.hosts.cluster import Cluster
from benchmarks.hosts.crowd import Crowd
from benchmarks.hosts.machine import until


def errands(count: int, seed: int, tokens: tuple[int, int] = (50, 60)) -> list[Errand]:
    dice = random.Random(seed)
    return [Errand(dice.randrange(10**6), dice.randint(*tokens), dice.choice([4.8, 20.0])) for _ in range(count)]


def problems(seen: Sequence[Seen]) -> list[Any]:
    """Of streams that were not told to the end, or told wrongly."""
    return [(s.errand.number, s.end, s.problems, s.error) for s in seen if s.problems or s.end != "complete"]


def amid_answers(cluster: Cluster, seed: int, least: Mapping[str, int]) -> Crowd:
    """Streams, six at a time, of which at least so many are amid their answer at each of these endpoints; "": at any.

    Six keep the devices' four slots busy, but not for long: newcomers shall wait for faults, not in queues.
    """
    crowd = Crowd(cluster, errands(15, seed, (80, 100)), at_once=6).start()

    def enough() -> bool:
        writers = Counter(visit.seen.writer for visit in crowd.streaming)
        writers[""] = writers.total()
        return all(writers[endpoint] >= count for endpoint, count in least.items())

    until(enough, 30, 0.05)
    return crowd


def newcomers(cluster: Cluster, seed: int, count: int = 10) -> Crowd:
    """Short requests, two a second, from now on."""
    return Crowd(cluster, errands(count, seed, (3, 5)), at_once=count, apart=[0.5] * count).start()


def first_text(newcomers: Crowd) -> float:
    """Seconds from the first of them, which came with a fault, until any of them had text. None of them failed."""
    failed = problems(newcomers.wait())
    assert not failed, failed
    began = newcomers.visits[0].began
    return min(visit.seen.arrivals[0][0] for visit in newcomers.visits) - began


def cloud_serves(cluster: Cluster) -> bool:
    return not problems(Crowd(cluster, [Errand(1, 3, None, pin="cloud_only")], at_once=1).start().wait())


def both_devices_serve(cluster: Cluster) -> bool:
    """More answers at once than one device has slots."""
    errands = [Errand(number, 40, 20.0, pin="device_only") for number in range(4)]
    crowd = Crowd(cluster, errands, at_once=4).start()
    most = 0
    while not crowd.over:
        most = max(most, len(crowd.streaming))
        time.sleep(0.05)
    return most > 2 and not problems(crowd.wait())
