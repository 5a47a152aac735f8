"""``--suite paper``: the paper's evaluation, on public traces."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread
from typing import Final

import numpy as np

from serve_app.core.cost import Regime
from serve_app.sim.ablation import Saving, ablate
from serve_app.sim.arrivals import client, poisson, rescaled
from serve_app.sim.joint import JointRow, play_joint
from serve_app.sim.public import load_folder
from serve_app.sim.rows import Case, Row, play_case
from serve_app.sim.shipped import PAPER_DEVICES, arrival_names, arrivals, paper_device
from serve_app.sim.study import Queueing, Scenario, queueing
from serve_app.sim.traces import LengthTrace, ServiceTrace

#: Seconds of a device's TTFT beyond prefill and first decode step: what phones showed, and none.
OVERHEADS: Final = (0.0, 0.15, 0.3, 0.7)
#: The overhead at which migration is looked at, and requests per row there.
MIGRATION_OVERHEAD, MIGRATION_REQUESTS = 0.3, 1000
#: Prompts for which one budget over prefill and decode is looked at.
JOINT_PROMPTS: Final = "alpaca"
#: Requests of a replay with arrivals, mean seconds between them, and the budget.
ARRIVALS, MEAN_GAP, ARRIVAL_BUDGET = 4000, 30.0, 0.3


@dataclass(frozen=True, slots=True)
class Results:
    rows: list[Row]
    joint: list[JointRow]
    savings: list[Saving]


def cases(services: Sequence[ServiceTrace], prompts: Sequence[LengthTrace]) -> list[Case]:
    return [
        Case(service, paper_device(name, overhead), overhead, lengths, regime)
        for service in services
        for name in PAPER_DEVICES
        for overhead in OVERHEADS
        for lengths in prompts
        for regime in Regime
    ]


def run(chosen: Sequence[Case], splits: int, jobs: int, progress: Callable[[int], None] = lambda _: None) -> Results:
    """Every case in ``jobs`` processes. ``progress`` is told how many are done."""
    results = Results([], [], [])
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_obey_parent) as pool:
        try:
            futures = [pool.submit(_one, case, splits) for case in chosen]
            for done, future in enumerate(futures, 1):
                rows, joint, savings = future.result()
                results.rows.extend(rows)
                results.joint.extend(joint)
                results.savings.extend(savings)
                progress(done)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return results


def _obey_parent() -> None:
    """Ctrl-C is the parent's to handle; and a worker must not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    Thread(target=_exit_after, args=(parent,), daemon=True).start()


def _exit_after(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def arrival_patterns(
    services: Sequence[ServiceTrace], prompts: Sequence[LengthTrace], folder: Path | None, seed: int
) -> list[Queueing]:
    """The default policies on the first service and prompts under every known pattern of arrivals, rescaled alike."""
    rng = np.random.default_rng(seed)
    times = {"poisson": poisson(ARRIVALS, MEAN_GAP, rng)}
    if folder is None:
        times |= {name: rescaled(arrivals(name).arrivals, ARRIVALS, MEAN_GAP) for name in arrival_names()}
    else:
        found = load_folder(folder)
        times |= {trace.name: rescaled(trace.arrivals, ARRIVALS, MEAN_GAP) for trace in found.arrivals}
        times |= {f"servegen {one.name}": client(one, ARRIVALS, MEAN_GAP, rng) for one in found.clients}
    device = paper_device(PAPER_DEVICES[0], MIGRATION_OVERHEAD)
    scenario = Scenario(services[0], device, prompts[0], halved=True, requests=ARRIVALS, seed=seed)
    return [
        queueing(scenario, regime, ARRIVAL_BUDGET, pattern, chosen)
        for regime in Regime
        for pattern, chosen in times.items()
    ]


def _one(case: Case, splits: int) -> tuple[list[Row], list[JointRow], list[Saving]]:
    joint = play_joint(case, splits) if case.prompts.name == JOINT_PROMPTS else []
    savings = ablate(case, MIGRATION_REQUESTS) if case.overhead == MIGRATION_OVERHEAD else []
    return play_case(case, splits), joint, savings
