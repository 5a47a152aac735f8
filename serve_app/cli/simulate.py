"""`disco simulate`: what every policy would do for given traces, as tables, JSON and plots."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from serve_app.cli import simulate_view as view
from serve_app.cli.exits import BAD_INPUT, FAILED, INTERRUPTED, OK, UNFIT
from serve_app.cli.outputs import require_file, require_folder
from serve_app.core.cost import Regime
from serve_app.sim import charts, plots, shipped
from serve_app.sim.ablation import Saving, Scope, ablate
from serve_app.sim.agreement import Agreement, compare
from serve_app.sim.arrivals import poisson, rescaled
from serve_app.sim.closed import LoopAgreement, close, compare_loop
from serve_app.sim.overhead import measure
from serve_app.sim.public import load_folder
from serve_app.sim.rows import Case
from serve_app.sim.study import Queueing, Scenario, queueing, steps, study
from serve_app.sim.suite import arrival_patterns, cases, run
from serve_app.sim.tables import BadInput
from serve_app.sim.traces import LengthTrace, ServiceTrace
from serve_app.sim.verdicts import judge, judge_overhead

SUITES: Final = ("paper",)
BUDGETS: Final = (0.1, 0.3, 0.5, 0.7, 0.9)
#: Requests of a queueing replay, of an exact one, of the moves and of the closed loop, at most.
_QUEUED, _EXACT, _MOVED, _CLOSED = 20_000, 2_000, 2_000, 4_000
#: TTFTs, and as many lengths, from which the suite's scheduling overhead is measured.
_SAMPLES: Final = 100_000
#: Prices at which moves are shown.
_PRICES: Final = "gpt-4o-mini"
_RATIO: Final = {Regime.DEVICE_CONSTRAINED: 10.0, Regime.SERVER_CONSTRAINED: 0.05}


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """``regimes``: empty for both. ``gap``: mean seconds between requests; None keeps a trace's own."""

    service: str
    device: str
    prompts: str
    arrivals: str | None
    gap: float | None
    regimes: tuple[str, ...]
    budgets: tuple[float, ...]
    requests: int
    seed: int
    exact: bool
    suite: str | None
    data: Path | None
    splits: int
    jobs: int
    json_file: Path | None
    plots: Path | None


def simulate(options: SimulateOptions, console: Console) -> int:
    """Print what came of it; the exit code."""
    try:
        _check(options)
        return _suite(options, console) if options.suite else _study(options, console)
    except BadInput as error:
        _complain(str(error))
        return BAD_INPUT
    except plots.PlotsMissing as error:
        _complain(str(error))
        return UNFIT
    except KeyboardInterrupt:
        return INTERRUPTED


def _check(options: SimulateOptions) -> None:
    for budget in options.budgets:
        if not 0 <= budget <= 1:
            raise BadInput("--budget: must be a share of all prompt tokens, from 0 to 1")
    for regime in options.regimes:
        if regime not in list(Regime):
            raise BadInput(f"--regime: must be one of {', '.join(Regime)}")
    if options.suite is not None and options.suite not in SUITES:
        raise BadInput(f"--suite: must be one of {', '.join(SUITES)}")
    if options.gap is not None and not 0 < options.gap < math.inf:
        raise BadInput("--gap: must be a positive number of seconds")
    if options.json_file is not None:
        require_file("--json", options.json_file)
    if options.plots is not None:
        plots.require()
        require_folder("--plots", options.plots)


# --- one service, one device ----------------------------------------------------------------------------------------


def _study(options: SimulateOptions, console: Console) -> int:
    service, prompts = shipped.service(options.service), shipped.prompts(options.prompts)
    own = options.service not in shipped.service_names()
    if own and service.ttft.size < 2:
        raise BadInput(f"{options.service}: column ttft_s has one row; half of a trace is fitted, so give two or more")
    scenario = Scenario(service, shipped.device(options.device), prompts, own, options.requests, options.seed)
    regimes = [Regime(name) for name in options.regimes] or list(Regime)
    budgets = options.budgets
    with _progress("replaying", steps(regimes, budgets)) as step:
        points = study(scenario, regimes, budgets, step)
    savings = [saving for regime in regimes for saving in _moves(scenario, regime, budgets)]
    queued = [one for regime in regimes for one in _queues(options, scenario, regime)]
    closed = [
        close(scenario, regime, budget, min(_CLOSED, options.requests)) for regime in regimes for budget in budgets
    ]
    console.print(view.sources(scenario))
    for regime in regimes:
        console.print(view.results(points, regime))
    console.print(view.closed_loop(closed))
    console.print(view.moves(savings))
    if queued:
        console.print(view.queues(queued))
    agreed = [one for regime in regimes for one in _compare(scenario, regime, budgets)] if options.exact else []
    for one in agreed:
        console.print(one.text, highlight=False, soft_wrap=True)
    _write(
        options,
        {
            "service": service.name,
            "device": scenario.device.name,
            "prompts": prompts.name,
            "dropped": service.dropped + prompts.dropped,
            "requests": options.requests,
            "seed": options.seed,
            "points": [asdict(point) for point in points],
            "closed_loop": [asdict(one) for one in closed],
            "moves": [asdict(saving) | {"saved": saving.saved} for saving in savings],
            "arrivals": [asdict(one) for one in queued],
            "exact": [asdict(one) for one in agreed],
        },
    )
    if options.plots is not None:
        _draw(charts.of_study(points, savings), options.plots, console)
    return OK if all(one.agrees for one in agreed) else FAILED


def _moves(scenario: Scenario, regime: Regime, budgets: Sequence[float]) -> list[Saving]:
    case = Case(scenario.service, scenario.device, 0.0, scenario.prompts, regime)
    scope = Scope((sorted(budgets)[len(budgets) // 2],), (_PRICES,), (_RATIO[regime],))
    return ablate(case, min(_MOVED, scenario.requests), scenario.seed, scope)


def _queues(options: SimulateOptions, scenario: Scenario, regime: Regime) -> list[Queueing]:
    if options.arrivals is None:
        return []
    count, gap = min(options.requests, _QUEUED), options.gap
    if options.arrivals == "poisson":
        times = poisson(count, gap or 30.0, np.random.default_rng(scenario.seed))
    else:
        trace = shipped.arrivals(options.arrivals)
        is_profile = options.arrivals in shipped.arrival_names()
        if gap is None and not is_profile:
            times = trace.arrivals[:count]
        else:
            times = rescaled(trace.arrivals, count, gap or 30.0)
    return [queueing(scenario, regime, budget, options.arrivals, times) for budget in options.budgets]


def _compare(scenario: Scenario, regime: Regime, budgets: Sequence[float]) -> tuple[Agreement, LoopAgreement]:
    count = min(_EXACT, scenario.requests)
    budget = sorted(budgets)[len(budgets) // 2]
    with _progress("production code", 2 * count) as step:
        return (
            compare(scenario, regime, budget, count, lambda _: step()),
            compare_loop(scenario, regime, budget, count, lambda _: step()),
        )


# --- the suite ------------------------------------------------------------------------------------------------------


def _suite(options: SimulateOptions, console: Console) -> int:
    services, prompts, where = _traces(options)
    chosen = cases(services, prompts)
    console.print(f"{len(chosen)} cases of {len(services)} services from {where}", highlight=False, soft_wrap=True)
    with _progress("evaluating", len(chosen)) as step:
        results = run(chosen, options.splits, options.jobs, lambda _: step())
    lines = judge(results.rows, results.joint, results.savings) + judge_overhead(measure(_SAMPLES), _SAMPLES)
    queued = arrival_patterns(services, prompts, options.data, options.seed)
    console.print(view.verdicts(lines))
    console.print(view.queues(queued))
    _write(
        options,
        {
            "traces": where,
            "splits": options.splits,
            "verdicts": [asdict(line) for line in lines],
            "rows": [row.as_json() for row in results.rows],
            "joint": [asdict(row) | {"cut": row.cut, "largest_cut": row.largest_cut} for row in results.joint],
            "moves": [asdict(saving) | {"saved": saving.saved} for saving in results.savings],
            "arrivals": [asdict(one) for one in queued],
        },
    )
    if options.plots is not None:
        _draw(charts.of_rows(results.rows, results.savings), options.plots, console)
    return OK


def _traces(options: SimulateOptions) -> tuple[list[ServiceTrace], list[LengthTrace], str]:
    if options.data is not None:
        found = load_folder(options.data)
        return found.services, found.prompts, str(options.data)
    services = [shipped.measured(name) for name in shipped.service_names()]
    return services, [shipped.prompts(name) for name in shipped.prompt_names()], "shipped quantile profiles"


# --- in and out -----------------------------------------------------------------------------------------------------


@contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr while it is a terminal; yields what to call for each step."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    stderr = Console(stderr=True)
    with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)


def _write(options: SimulateOptions, document: dict[str, Any]) -> None:
    if options.json_file is None:
        return
    try:
        options.json_file.write_text(json.dumps(document, indent=1), "utf-8")
    except OSError as error:
        raise BadInput(f"--json: {options.json_file} cannot be written ({error.strerror}); give another path") from None


def _draw(drawn: list[charts.Chart], folder: Path, console: Console) -> None:
    written = plots.draw(drawn, folder)
    console.print(f"{len(written)} plots in {folder}", highlight=False, soft_wrap=True)


def _complain(message: str) -> None:
    Console(stderr=True).print(escape(message), style="red", highlight=False, soft_wrap=True)
