"""What a refit of each dispatch policy costs, from raw, unsorted samples, and what a decision costs.

    python -m benchmarks.planner [--samples 100000] [--rounds 200]

As in the suite (serve_app/sim/overhead.py), and beside it numpy's sort of the same samples. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from rich.console import Console
from rich.table import Table

from serve_app.sim.overhead import FITS, Samples, Seconds, decisions, median_times

SORTS: Final[dict[str, Callable[[Samples], object]]] = {
    "sort of the TTFTs": lambda samples: np.sort(samples.ttfts),
    "sort of both": lambda samples: (np.sort(samples.ttfts), np.sort(samples.lengths)),
}


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
    refit = median_times(SORTS | FITS, samples, arguments.rounds, rng)
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
