"""What a refit of each dispatch policy costs, from raw, unsorted samples, and what a decision costs.

    python -m benchmarks.planner [--samples 100000] [--rounds 200]

Every round permutes the samples, sorts them with numpy for comparison, and fits each policy once. The medians are over
the rounds; nothing of one fit is kept for the next. A fit is one thread that never waits, so where the machine has
other work its CPU time is the one to read. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from serve_app.core.buckets import BucketedTtft
from serve_app.core.dispatch import Policy, Scheduled, Starter
from serve_app.core.latency import LinearTtft
from serve_app.core.lengths import LengthDistribution
from serve_app.core.optimal_threshold import fit_optimal_threshold
from serve_app.core.optimal_waits import fit_optimal_waits
from serve_app.core.threshold import fit_threshold
from serve_app.core.wait_time import fit_waits

BUDGET: Final = 0.3
TAIL_SHARE: Final = 0.05
#: A phone: 50 tokens per second of prefill, .4 s until the first decode.
DEVICE: Final = LinearTtft(1 / 50, 0.4)
#: Decisions in one timed batch.
BATCH: Final = 200


@dataclass(frozen=True, slots=True)
class Samples:
    """TTFTs in seconds and prompt lengths in tokens, in no order."""

    ttfts: NDArray[np.float64]
    lengths: NDArray[np.int64]

    @classmethod
    def draw(cls, count: int, rng: np.random.Generator) -> Samples:
        """Log-normal, every twentieth answer ten times as late."""
        ttfts = 0.6 * np.exp(0.5 * rng.standard_normal(count)) * np.where(rng.random(count) < 0.05, 10.0, 1.0)
        return cls(ttfts, np.maximum(1.0, 40 * np.exp(rng.standard_normal(count))).astype(np.int64))

    def shuffled(self, rng: np.random.Generator) -> Samples:
        return Samples(rng.permutation(self.ttfts), rng.permutation(self.lengths))


def fit_d(samples: Samples) -> Starter:
    lengths = LengthDistribution.of_samples(samples.lengths)
    return fit_waits(BucketedTtft(samples.ttfts), lengths, BUDGET, TAIL_SHARE)


def fit_d_star(samples: Samples) -> Starter:
    lengths = LengthDistribution.of_samples(samples.lengths)
    return fit_optimal_waits(BucketedTtft(samples.ttfts), lengths, DEVICE, BUDGET)


def fit_s(samples: Samples) -> Starter:
    return fit_threshold(LengthDistribution.of_samples(samples.lengths), BUDGET)


def fit_s_star(samples: Samples) -> Starter:
    lengths = LengthDistribution.of_samples(samples.lengths)
    return fit_optimal_threshold(BucketedTtft(samples.ttfts), lengths, DEVICE, BUDGET)


FITS: Final[dict[str, Callable[[Samples], Starter]]] = {
    "disco-d": fit_d,
    "disco-d*": fit_d_star,
    "disco-s": fit_s,
    "disco-s*": fit_s_star,
}
SORTS: Final[dict[str, Callable[[Samples], object]]] = {
    "sort of the TTFTs": lambda samples: np.sort(samples.ttfts),
    "sort of both": lambda samples: (np.sort(samples.ttfts), np.sort(samples.lengths)),
}


class Seconds(NamedTuple):
    """Passed on the clock, and spent by this thread. They differ where the machine has other work."""

    wall: float
    cpu: float


def timed(work: Callable[[], object]) -> Seconds:
    wall, cpu = time.perf_counter(), time.thread_time()
    work()
    return Seconds(time.perf_counter() - wall, time.thread_time() - cpu)


def medians(seen: Iterable[Seconds]) -> Seconds:
    walls, cpus = zip(*seen, strict=True)
    return Seconds(median(walls), median(cpus))


def refits(samples: Samples, rounds: int, rng: np.random.Generator) -> dict[str, Seconds]:
    work = SORTS | FITS
    seen: dict[str, list[Seconds]] = {name: [] for name in work}
    for _ in range(rounds):
        shuffled = samples.shuffled(rng)
        for name, fit in work.items():
            seen[name].append(timed(partial(fit, shuffled)))
    return {name: medians(found) for name, found in seen.items()}


def decisions(samples: Samples, rounds: int, rng: np.random.Generator) -> dict[str, Seconds]:
    """Of one decision, over batches of random requests."""
    found = {}
    for name, fit in FITS.items():
        policy = Scheduled("cloud", "phone", fit(samples), name, "the fit", BUDGET)
        requests = list(zip(rng.choice(samples.lengths, BATCH).tolist(), rng.random(BATCH).tolist(), strict=True))
        wall, cpu = medians(timed(partial(decide_all, policy, requests)) for _ in range(rounds))
        found[name] = Seconds(wall / BATCH, cpu / BATCH)
    return found


def decide_all(policy: Policy, requests: list[tuple[int, float]]) -> None:
    for prompt_tokens, u in requests:
        policy.decide(prompt_tokens, u)


def table(title: str, refit: dict[str, Seconds], decision: dict[str, Seconds]) -> Table:
    shown = Table(title=title)
    for column in ("", "ms", "CPU ms", "CPU of a sort", "decision, us", "CPU us"):
        shown.add_column(column, justify="right" if column else "left")
    for name, (wall, cpu) in refit.items():
        decided = [f"{seconds * 1e6:.2f}" for seconds in decision.get(name, ())]
        relative = cpu / refit["sort of the TTFTs"].cpu
        shown.add_row(name, f"{wall * 1e3:.3f}", f"{cpu * 1e3:.3f}", f"{relative:.2f}", *decided)
    return shown


def figures(seconds: Mapping[str, Seconds], scale: float) -> dict[str, dict[str, float]]:
    return {
        name: {"wall": round(wall * scale, 4), "cpu": round(cpu * scale, 4)} for name, (wall, cpu) in seconds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What refits and decisions cost.")
    parser.add_argument("--samples", type=int, default=100_000, help="TTFTs, and as many prompt lengths")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    samples = Samples.draw(arguments.samples, rng)
    refit = refits(samples, arguments.rounds, rng)
    decision = decisions(samples, arguments.rounds, rng)
    load = os.getloadavg()[0]
    title = (
        f"Refit from {arguments.samples:,} raw samples; medians of {arguments.rounds} rounds; load average {load:.2f}"
    )
    Console(width=100).print(table(title, refit, decision))
    print(
        json.dumps(
            {
                "samples": arguments.samples,
                "rounds": arguments.rounds,
                "load_average": round(load, 2),
                "refit_ms": figures({name: refit[name] for name in FITS}, 1e3),
                "numpy_sort_ms": figures({name: refit[name] for name in SORTS}, 1e3),
                "decision_us": figures(decision, 1e6),
            }
        )
    )


if __name__ == "__main__":
    main()
