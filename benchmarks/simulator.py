"""How long a million simulated requests take per policy, with drawing them and their quantiles, and how much memory.

python -m benchmarks.simulator [--requests 1000000] [--repeat 5]
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time

from rich.console import Console
from rich.table import Table

from serve_app.core.cost import Regime
from serve_app.sim import shipped
from serve_app.sim.policies import CONTENDERS, baselines
from serve_app.sim.study import ORACLE, Scenario, decider
from serve_app.sim.vector import simulate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    scenario = Scenario(
        shipped.service("gpt-4-turbo-iad"),
        shipped.device("s23-gemma3-1b-q4"),
        shipped.prompts("sharegpt"),
        halved=False,
        requests=options.requests,
        seed=0,
    )
    knowledge, population = scenario.split()
    table = Table("regime", "policy", "median s", "slowest s", "median CPU s")
    for regime in Regime:
        for name in (*baselines(regime), *CONTENDERS[regime], ORACLE):
            decide = decider(name, regime, 0.3, knowledge)
            seconds, busy = [], []
            for _ in range(options.repeat):
                began, worked = time.perf_counter(), time.process_time()
                simulate(population.blocks(scenario.requests, scenario.seed), decide, scenario.device.line, regime)
                seconds.append(time.perf_counter() - began)
                busy.append(time.process_time() - worked)
            figures = statistics.median(seconds), max(seconds), statistics.median(busy)
            table.add_row(regime.value, name, *(f"{figure:.3f}" for figure in figures))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    Console().print(table)
    Console().print(f"peak memory of the process: {peak:.0f} MiB")


if __name__ == "__main__":
    main()
