"""What the plots show, as plain numbers; ``plots`` draws them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from serve_app.core.cost import Regime
from serve_app.sim.ablation import Saving
from serve_app.sim.judge import Reading
from serve_app.sim.rows import Row
from serve_app.sim.study import ORACLE, SHARES, Point


@dataclass(frozen=True, slots=True)
class Series:
    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """``name``: the files' stem. ``percent``: the vertical axis is a share. ``log``: of the horizontal one."""

    name: str
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    percent: bool = False
    log: bool = False


def of_study(points: Sequence[Point], savings: Sequence[Saving]) -> list[Chart]:
    """TTFT distributions at the middle budget, mean and P99 and the oracle's share by budget; then the moves."""
    charts = []
    for regime in dict.fromkeys(point.regime for point in points):
        here = [point for point in points if point.regime is regime]
        budgets = sorted({point.budget for point in here})
        middle = budgets[len(budgets) // 2]
        charts += [
            Chart(
                f"ttft-cdf-{regime.value}",
                f"Time to first token at b = {middle:g} ({regime.value})",
                "seconds",
                "share of requests",
                tuple(Series(p.policy, p.distribution, SHARES) for p in here if p.budget == middle),
                percent=True,
                log=True,
            ),
            _by_budget(here, f"ttft-mean-{regime.value}", f"Mean TTFT ({regime.value})", "mean"),
            _by_budget(here, f"ttft-p99-{regime.value}", f"P99 of TTFT ({regime.value})", "p99"),
            _oracle_share(here, regime),
        ]
    return charts + of_savings(savings)


def of_rows(rows: Sequence[Row], savings: Sequence[Saving]) -> list[Chart]:
    """Medians over all rows of the evaluation, relative to concurrent chance with the same spend."""
    charts = []
    for regime in dict.fromkeys(row.regime for row in rows):
        here = [row for row in rows if row.regime is regime]
        policies = list(here[0].figures)
        budgets = tuple(sorted({row.budget for row in here}))
        for name, what, title, y_label in (
            ("mean", "mean", "Mean TTFT cut against chance", "median cut"),
            ("p99", "p99", "P99 TTFT cut against chance", "median cut"),
            ("oracle", "oracle", "Share of the oracle's gain", "median share"),
        ):
            series = tuple(
                Series(policy, budgets, tuple(_median_over(here, policy, budget, what) for budget in budgets))
                for policy in policies
            )
            file = f"suite-{name}-{regime.value}"
            charts.append(Chart(file, f"{title} ({regime.value})", "budget b", y_label, series, percent=True))
    return charts + of_savings(savings)


def of_savings(savings: Sequence[Saving]) -> list[Chart]:
    """Cost with moves over cost without, and late tokens per move, by price of the device's tokens; medians of rows."""
    charts = []
    for regime in dict.fromkeys(saving.regime for saving in savings):
        here = [saving for saving in savings if saving.regime is regime]
        ratios = tuple(sorted({saving.ratio for saving in here}))
        manners = list(dict.fromkeys(saving.manner for saving in here))
        stay = Series("without moves", ratios, (1.0,) * len(ratios))

        def medians(manner: str, value: str, among: list[Saving] = here, xs: tuple[float, ...] = ratios) -> Series:
            chosen = [[s for s in among if s.manner == manner and s.ratio == x] for x in xs]
            return Series(manner, xs, tuple(float(np.median([_value(s, value) for s in group])) for group in chosen))

        price = "device's price over server's"
        costs = (stay, *(medians(manner, "cost") for manner in manners))
        late = tuple(medians(manner, "delay_num") for manner in manners)
        charts += [
            Chart(
                f"cost-{regime.value}", f"Cost with moves ({regime.value})", price, "of that without", costs, True, True
            ),
            Chart(
                f"delay-num-{regime.value}", f"Late tokens per move ({regime.value})", price, "tokens", late, log=True
            ),
        ]
    return charts


def _value(saving: Saving, what: str) -> float:
    return 1 - saving.saved if what == "cost" else saving.delay_num


def _by_budget(points: Sequence[Point], name: str, title: str, field: str) -> Chart:
    return Chart(
        name,
        title,
        "budget b",
        "seconds",
        tuple(
            Series(policy, tuple(p.budget for p in mine), tuple(float(getattr(p.summary, field)) for p in mine))
            for policy, mine in _grouped(points)
        ),
    )


def _oracle_share(points: Sequence[Point], regime: Regime) -> Chart:
    series = []
    for policy, mine in _grouped(points):
        known = [(p.budget, p.oracle_share) for p in mine if p.oracle_share is not None]
        if known and policy != ORACLE and "only" not in policy.split():
            series.append(Series(policy, tuple(b for b, _ in known), tuple(share for _, share in known)))
    title = f"Share of the oracle's gain over chance ({regime.value})"
    return Chart(f"oracle-share-{regime.value}", title, "budget b", "share", tuple(series), percent=True)


def _grouped(points: Iterable[Point]) -> list[tuple[str, list[Point]]]:
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(point.policy, []).append(point)
    return [(policy, sorted(mine, key=lambda p: p.budget)) for policy, mine in groups.items()]


def _median_over(rows: Sequence[Row], policy: str, budget: float, what: str) -> float:
    figures = [row.figures[policy] for row in rows if row.budget == budget]
    match what:
        case "mean":
            values = [f.mean_cut(Reading.CONCURRENT) for f in figures]
        case "p99":
            values = [f.p99_cut(Reading.CONCURRENT) for f in figures]
        case _:
            values = [f.capture(f.oracle) for f in figures]
    return float(np.median(values))
