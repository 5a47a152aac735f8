"""What a refit of each dispatch policy costs, from raw, unsorted samples, and what a decision costs.

    python -m benchmarks.planner [--samples 100000] [--rounds 200]

Every round permutes the samples, sorts them with numpy for comparison, and fits each policy once. The medians are over
the rounds; nothing of one fit is kept for the next. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Final

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from serve_app.core.buckets import BucketedTtft
from serve_app.core.dispatch import Scheduled, Starter
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
BATCH: Final = 2000


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


def timed(work: Callable[[], object]) -> float:
    """Seconds."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def refits(samples: Samples, rounds: int, rng: np.random.Generator) -> dict[str, float]:
    """Median seconds by name."""
    work = SORTS | FITS
    seen: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        shuffled = samples.shuffled(rng)
        for name, fit in work.items():
            seen[name].append(timed(partial(fit, shuffled)))
    return {name: median(seconds) for name, seconds in seen.items()}


def decisions(samples: Samples, rounds: int, rng: np.random.Generator) -> dict[str, float]:
    """Median seconds of one decision by policy, over batches of random requests."""
    found = {}
    for name, fit in FITS.items():
        policy = Scheduled("cloud", "phone", fit(samples), name, "the fit", BUDGET)
        requests = list(zip(rng.choice(samples.lengths, BATCH).tolist(), rng.random(BATCH).tolist(), strict=True))

        def batch(policy: Scheduled = policy, requests: list[tuple[int, float]] = requests) -> None:
            for prompt_tokens, u in requests:
                policy.decide(prompt_tokens, u)

        found[name] = median(timed(batch) for _ in range(rounds)) / BATCH
    return found


def rows(refit: dict[str, float], decision: dict[str, float]) -> Iterator[tuple[str, str, str, str]]:
    sort = refit["sort of the TTFTs"]
    for name, seconds in refit.items():
        decided = f"{decision[name] * 1e6:.2f}" if name in decision else ""
        yield name, f"{seconds * 1e3:.3f}", f"{seconds / sort:.2f}", decided


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=100_000, help="TTFTs, and as many prompt lengths")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    samples = Samples.draw(arguments.samples, rng)
    refit = refits(samples, arguments.rounds, rng)
    decision = decisions(samples, max(1, arguments.rounds // 10), rng)
    table = Table("", "ms", "of a sort", "decision, us", title=f"Refit from {arguments.samples:,} raw samples, median")
    for row in rows(refit, decision):
        table.add_row(*row)
    Console().print(table)
    print(
        json.dumps(
            {
                "samples": arguments.samples,
                "rounds": arguments.rounds,
                "refit_ms": {name: round(refit[name] * 1e3, 4) for name in FITS},
                "numpy_sort_ms": {name: round(refit[name] * 1e3, 4) for name in SORTS},
                "decision_us": {name: round(seconds * 1e6, 3) for name, seconds in decision.items()},
            }
        )
    )


if __name__ == "__main__":
    main()
