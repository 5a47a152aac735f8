"""What scheduling itself takes: a refit of each policy from raw, unsorted samples, and a decision.

Every round permutes the samples and fits each policy once; nothing of one fit is kept for the next. Figures are medians
over the rounds. A fit is one thread that never waits, so where the machine has other work its CPU time is the one to
read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serve_app.core.buckets import BucketedTtft
from serve_app.core.dispatch import Policy, Scheduled, Starter
from serve_app.core.latency import LinearTtft
from serve_app.core.lengths import LengthDistribution
from serve_app.core.optimal_threshold import fit_optimal_threshold
from serve_app.core.optimal_waits import fit_optimal_waits
from serve_app.core.threshold import fit_threshold
from serve_app.core.wait_time import fit_waits
from serve_app.sim.policies import DISCO_D, DISCO_D_STAR, DISCO_S, DISCO_S_STAR

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


def _fit_d(samples: Samples) -> Starter:
    lengths = LengthDistribution.of_samples(samples.lengths)
    return fit_waits(BucketedTtft(samples.ttfts), lengths, BUDGET, TAIL_SHARE)


def _fit_d_star(samples: Samples) -> Starter:
    lengths = LengthDistribution.of_samples(samples.lengths)
    return fit_optimal_waits(BucketedTtft(samples.ttfts), lengths, DEVICE, BUDGET)


def _fit_s(samples: Samples) -> Starter:
    return fit_threshold(LengthDistribution.of_samples(samples.lengths), BUDGET)


def _fit_s_star(samples: Samples) -> Starter:
    lengths = LengthDistribution.of_samples(samples.lengths)
    return fit_optimal_threshold(BucketedTtft(samples.ttfts), lengths, DEVICE, BUDGET)


FITS: Final[dict[str, Callable[[Samples], Starter]]] = {
    DISCO_D: _fit_d,
    DISCO_D_STAR: _fit_d_star,
    DISCO_S: _fit_s,
    DISCO_S_STAR: _fit_s_star,
}


class Seconds(NamedTuple):
    """Passed on the clock, and spent by this thread."""

    wall: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Overhead:
    """CPU seconds of one ``policy``."""

    policy: str
    refit: float
    decision: float


def measure(samples: int, rounds: int = 30, seed: int = 0) -> list[Overhead]:
    """``samples``: TTFTs, and as many prompt lengths."""
    rng = np.random.default_rng(seed)
    drawn = Samples.draw(samples, rng)
    refit, decision = median_times(FITS, drawn, rounds, rng), decisions(drawn, rounds, rng)
    return [Overhead(name, refit[name].cpu, decision[name].cpu) for name in FITS]


def median_times(
    work: Mapping[str, Callable[[Samples], object]], samples: Samples, rounds: int, rng: np.random.Generator
) -> dict[str, Seconds]:
    """Of each kind of work, in turn."""
    seen: dict[str, list[Seconds]] = {name: [] for name in work}
    for _ in range(rounds):
        shuffled = samples.shuffled(rng)
        for name, do in work.items():
            seen[name].append(_timed(partial(do, shuffled)))
    return {name: _medians(found) for name, found in seen.items()}


def decisions(samples: Samples, rounds: int, rng: np.random.Generator) -> dict[str, Seconds]:
    """Of one decision, over batches of random requests."""
    found = {}
    for name, fit in FITS.items():
        policy = Scheduled("cloud", "phone", fit(samples), name, "the fit", BUDGET)
        requests = list(zip(rng.choice(samples.lengths, BATCH).tolist(), rng.random(BATCH).tolist(), strict=True))
        wall, cpu = _medians(_timed(partial(_decide_all, policy, requests)) for _ in range(rounds))
        found[name] = Seconds(wall / BATCH, cpu / BATCH)
    return found


def _decide_all(policy: Policy, requests: list[tuple[int, float]]) -> None:
    for prompt_tokens, u in requests:
        policy.decide(prompt_tokens, u)


def _timed(work: Callable[[], object]) -> Seconds:
    wall, cpu = time.perf_counter(), time.thread_time()
    work()
    return Seconds(time.perf_counter() - wall, time.thread_time() - cpu)


def _medians(seen: Iterable[Seconds]) -> Seconds:
    walls, cpus = zip(*seen, strict=True)
    return Seconds(median(walls), median(cpus))
