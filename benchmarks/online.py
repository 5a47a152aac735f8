"""What is spent, and how fast answers begin, when policies know only what they have seen so far.

    python -m benchmarks.online [--requests 4000] [--budgets .05 .1 ...] [--llmperf FILE] [--quick]

Spend: the default policies from their first request on, on every service, device and prompt set, against the budget.
Beside them, fits of the same policies to half of each trace, which never look at what was spent. Drift: a service that
turns into another one and back, beside a fit to each segment in hindsight, under seven seeds; in runs of 15 consecutive
requests where the original of llmperf is given (`disco traces` says where to get it), as the shipped profiles have no
order. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from serve_app.core.cost import Regime
from serve_app.core.latency import EmpiricalTtft, LinearTtft
from serve_app.core.lengths import LengthDistribution
from serve_app.core.optimal_threshold import fit_optimal_threshold
from serve_app.core.optimal_waits import fit_optimal_waits
from serve_app.core.schedule import Schedule
from serve_app.sim import public, shipped
from serve_app.sim.online import Loop, serve
from serve_app.sim.requests import Population, Requests

BUDGETS: Final = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
OVERHEADS: Final = (0.0, 0.15, 0.3, 0.7)
#: Prompts longer than any context are refused, not served.
LONGEST: Final = 8192
SEED: Final = 20250217
DRIFT: Final = ("groq-llama2-70b", "replicate-llama2-70b", "groq-llama2-70b")
DRIFT_BUDGETS: Final = (0.1, 0.3, 0.5)
#: Draws of each drift: a P99 of 4,500 requests is decided by 45 of them.
DRIFT_SEEDS: Final = range(SEED, SEED + 7)
SEGMENT: Final = 1500
WINDOW: Final = 200
CONSECUTIVE: Final = 500
#: Requests that follow each other in a trace, and in its replay.
RUN: Final = 15
#: Requests after a switch in which the estimates turn over.
SETTLED: Final = 300


class Drift(NamedTuple):
    """``services``: TTFTs in seconds by name; ``run``: requests that followed each other."""

    services: Mapping[str, NDArray[np.float64]]
    budget: float
    run: int


class Row(NamedTuple):
    service: str
    device: str
    overhead: float
    prompts: str
    regime: Regime
    budget: float


def population(row: Row) -> Population:
    device = shipped.paper_device(row.device, row.overhead)
    prompts = shipped.prompts(row.prompts)
    fits = prompts.prompt_tokens <= LONGEST
    ttft = shipped.measured(row.service).ttft
    return Population(ttft, prompts.prompt_tokens[fits], prompts.output_tokens[fits], device.line)


def spend(row: Row, requests: int) -> dict[str, Any]:
    """Realised spend relative to b, and whether there was use for all of b."""
    people = population(row)
    drawn = people.draw(requests, np.random.default_rng(SEED))
    served = serve(drawn, Loop(people.device, row.regime, row.budget))
    half = np.random.default_rng(SEED).permutation(people.server_ttft)[: (people.server_ttft.size + 1) // 2]
    lengths = LengthDistribution.of_samples(people.prompt_tokens)
    static = _spent(_fit(EmpiricalTtft(half), lengths, people.device, row), drawn, row.regime)
    everything = _spent(_fit(EmpiricalTtft(people.server_ttft), lengths, people.device, row), drawn, row.regime)
    total = drawn.prompt_tokens.sum()
    return {
        **row._asdict(),
        "regime": row.regime.value,
        "online": served.share / row.budget - 1,
        "static": float(static.sum() / total) / row.budget - 1,
        "useful": bool(everything.sum() / total >= 0.99 * row.budget),
    }


def _fit(ttft: EmpiricalTtft, lengths: LengthDistribution, device: LinearTtft, row: Row) -> Schedule:
    if row.regime is Regime.DEVICE_CONSTRAINED:
        return fit_optimal_waits(ttft, lengths, device, row.budget)
    return fit_optimal_threshold(ttft, lengths, device, row.budget)


def _spent(schedule: Schedule, requests: Requests, regime: Regime) -> NDArray[np.int64]:
    delays = schedule.delays(requests.prompt_tokens, requests.u)
    if regime is Regime.SERVER_CONSTRAINED:
        return np.where(np.isfinite(delays.server), requests.prompt_tokens, 0)
    starts = (requests.server_ttft > delays.device) | (delays.device == 0)
    return np.where(starts, requests.prompt_tokens, 0)


def rows(budgets: Sequence[float], overheads: Sequence[float]) -> Iterator[Row]:
    names = shipped.service_names(), shipped.PAPER_DEVICES, overheads, ("alpaca", "sharegpt"), Regime, budgets
    return (Row(*each) for each in product(*names))


# --- drift ----------------------------------------------------------------------------------------------------------


def drifting(services: Mapping[str, NDArray[np.float64]], run: int, seed: int) -> Requests:
    """Segments of the services in ``DRIFT``, drawn in runs of ``run`` requests that followed each other."""
    rng = np.random.default_rng(seed)
    prompts = shipped.prompts("alpaca")
    count = SEGMENT * len(DRIFT)
    ttft = []
    for name in DRIFT:
        samples = services[name]
        starts = rng.integers(0, samples.size, SEGMENT // run)
        ttft.append(samples[(starts[:, None] + np.arange(run)).ravel() % samples.size])
    lengths = rng.choice(prompts.prompt_tokens, count)
    u = rng.random(count)
    return Requests(lengths, rng.choice(prompts.output_tokens, count), np.concatenate(ttft), u)


def drift(services: Mapping[str, NDArray[np.float64]], budget: float, run: int, seed: int) -> dict[str, float]:
    requests = drifting(services, run, seed)
    device = shipped.paper_device(shipped.PAPER_DEVICES[1], 0.3).line
    served = serve(requests, Loop(device, Regime.DEVICE_CONSTRAINED, budget, WINDOW))
    hindsight = _hindsight(requests, device, budget)
    second = slice(SEGMENT + SETTLED, 2 * SEGMENT)
    return {
        "most_over_budget": served.most_over(budget, CONSECUTIVE),
        "p99_ratio": _p99(served.ttft) / _p99(hindsight),
        "settled_p99_ratio": _p99(served.ttft[second]) / _p99(hindsight[second]),
    }


def _hindsight(requests: Requests, device: LinearTtft, budget: float) -> NDArray[np.float64]:
    """TTFTs under a fit to each segment's own draws, made before it begins."""
    shown = []
    for segment in range(len(DRIFT)):
        part = requests[slice(segment * SEGMENT, (segment + 1) * SEGMENT)]
        lengths = LengthDistribution.of_samples(part.prompt_tokens)
        table = fit_optimal_waits(EmpiricalTtft(part.server_ttft), lengths, device, budget)
        waits = table.delays(part.prompt_tokens, part.u).device
        shown.append(np.minimum(part.server_ttft, waits + device.slope * part.prompt_tokens + device.intercept))
    return np.concatenate(shown)


def _p99(ttft: NDArray[np.float64]) -> float:
    return float(np.quantile(ttft, 0.99))


# --- tables ---------------------------------------------------------------------------------------------------------


def _spend_figures(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    online = np.array([each["online"] for each in found])
    useful = np.array([each["online"] for each in found if each["useful"]])
    static = np.array([each["static"] for each in found])
    return {
        "rows": len(found),
        "rows_with_use_for_all": useful.size,
        "over_by_1_percent_rows": int((online > 0.01).sum()),
        "most_over_percent": round(100 * float(online.max()), 2),
        "under_by_3_percent_rows": int((useful < -0.03).sum()),
        "most_under_percent": round(100 * float(useful.min()), 2) if useful.size else None,
        "online_mean_abs_percent": round(100 * float(np.abs(useful).mean()), 2) if useful.size else None,
        "static_over_by_1_percent_rows": int((static > 0.01).sum()),
        "static_most_over_percent": round(100 * float(static.max()), 2),
    }


def _spent_by_prompts(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        f"spend_{prompts}": _spend_figures([each for each in found if each["prompts"] == prompts])
        for prompts in ("alpaca", "sharegpt")
    }


def _spend_table(results: Mapping[str, Any], requests: int) -> Table:
    table = Table("spend", "alpaca", "sharegpt", title=f"{requests} requests per row, relative to b")
    for key in results["spend_alpaca"]:
        table.add_row(key, *(str(results[f"spend_{prompts}"][key]) for prompts in ("alpaca", "sharegpt")))
    return table


def _drifts(llmperf: Path | None) -> list[Drift]:
    profiles = {name: shipped.measured(name).ttft for name in DRIFT}
    drifts = [Drift(profiles, budget, 1) for budget in DRIFT_BUDGETS]
    if llmperf is not None:
        ordered = {service.name.replace("-", "-llama2-"): service.ttft for service in public.llmperf(llmperf)}
        drifts += [Drift(ordered, budget, RUN) for budget in DRIFT_BUDGETS]
    return drifts


def _drift_figures(drifts: Sequence[Drift], found: Sequence[dict[str, float]]) -> list[dict[str, Any]]:
    """``found``: every seed of the first drift, then of the next. Medians over the seeds, and the worst."""
    rows: list[dict[str, Any]] = []
    for number, (_, budget, run) in enumerate(drifts):
        seeds = found[number * len(DRIFT_SEEDS) : (number + 1) * len(DRIFT_SEEDS)]
        row: dict[str, Any] = {"budget": budget, "run_requests": run}
        for key in seeds[0]:
            values = [each[key] for each in seeds]
            row |= {key: float(np.median(values)), f"{key}_worst": max(values)}
        rows.append(row)
    return rows


def _drift_table(figures: Sequence[Mapping[str, Any]]) -> Table:
    title = f"{' -> '.join(DRIFT)}, {SEGMENT} requests each, window {WINDOW}: medians of {len(DRIFT_SEEDS)} seeds"
    table = Table(*(key.replace("_", " ") for key in figures[0]), title=title)
    for each in figures:
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in each.values()))
    return table


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("at least 1 request is needed")
    return int(text)


def _share(text: str) -> float:
    share = float(text)
    if not 0 < share < 1:
        raise argparse.ArgumentTypeError("a budget is a share above 0 and below 1")
    return share


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError("an overhead is a finite number of seconds, 0 or more")
    return seconds


def _file(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError("there is no such file; `disco traces` says where to get it")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=_count, default=4000)
    parser.add_argument("--budgets", type=_share, nargs="+", default=list(BUDGETS))
    parser.add_argument("--overheads", type=_seconds, nargs="+", default=list(OVERHEADS))
    parser.add_argument("--llmperf", type=_file, help="llmperf_2023_individual.csv, for drift in runs")
    parser.add_argument("--quick", action="store_true", help="three budgets and one overhead: a look")
    parser.add_argument("--only", choices=["spend", "drift"])
    options = parser.parse_args()
    console, results = Console(width=120), dict[str, Any]()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        if options.only != "drift":
            budgets, overheads = ((0.1, 0.3, 0.7), (0.3,)) if options.quick else (options.budgets, options.overheads)
            wanted = list(rows(budgets, overheads))
            found = list(pool.map(spend, wanted, [options.requests] * len(wanted), chunksize=8))
            results |= {"requests_per_row": options.requests} | _spent_by_prompts(found)
            console.print(_spend_table(results, options.requests))
        if options.only != "spend":
            drifts = _drifts(options.llmperf)
            seeded = [(*each, seed) for each in drifts for seed in DRIFT_SEEDS]
            results["drift"] = _drift_figures(drifts, list(pool.map(drift, *zip(*seeded, strict=True))))
            console.print(_drift_table(results["drift"]))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
