"""What the evaluation has to show, line by line: the target, the figure, and whether it is met."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from serve_app.core.cost import Regime
from serve_app.core.migration import MigrationMode
from serve_app.sim.ablation import READER, Manner, Saving
from serve_app.sim.joint import JointRow
from serve_app.sim.judge import Reading
from serve_app.sim.overhead import Overhead
from serve_app.sim.policies import DEFAULT, DISCO_D, DISCO_D_01, DISCO_D_STAR, DISCO_S, DISCO_S_MEAN, DISCO_S_STAR
from serve_app.sim.rows import Figures, Row

#: Share of the baseline's mean that the optimum must gain for a row to say anything about capture.
HEADROOM: Final = 0.02


@dataclass(frozen=True, slots=True)
class Line:
    """``met``: None for a figure that is printed without a target."""

    subject: str
    claim: str
    target: str
    figure: str
    met: bool | None


def judge(rows: Sequence[Row], joint: Sequence[JointRow], savings: Sequence[Saving]) -> list[Line]:
    """Every line over all rows. None is left out but those without headroom, which are counted."""
    lines = [*_headroom(rows), *_capture(rows), *_mean(rows), *_tail(rows), *_static_spend(rows), *_ranges(rows)]
    return lines + _joint(joint) + _migration(savings)


# --- dispatch -------------------------------------------------------------------------------------------------------


def _of(rows: Iterable[Row], policy: str) -> list[tuple[Row, Figures]]:
    return [(row, row.figures[policy]) for row in rows if policy in row.figures]


def _with_headroom(rows: Iterable[Row], policy: str) -> list[tuple[Row, Figures]]:
    return [(row, figures) for row, figures in _of(rows, policy) if figures.headroom > HEADROOM]


def _headroom(rows: Sequence[Row]) -> list[Line]:
    lines = []
    for regime, policy in DEFAULT.items():
        every, useful = _of(rows, policy), _with_headroom(rows, policy)
        claim = f"{regime.value}: rows in which the optimum beats chance by > {HEADROOM:.0%}"
        lines.append(Line("rows", claim, "-", f"{len(useful)} of {len(every)}", None))
    return lines


def _capture(rows: Sequence[Row]) -> list[Line]:
    lines = []
    targets: list[tuple[str, float, float, float | None]] = [
        (DISCO_D_STAR, 0.98, 0.93, 0.90),
        (DISCO_S_MEAN, 0.98, 0.98, None),
        (DISCO_S_STAR, 0.98, 0.75, None),
    ]
    for policy, median, quartile, each in targets:
        found = [(row.service, figures.capture(figures.optimum)) for row, figures in _with_headroom(rows, policy)]
        values = [value for _, value in found]
        lines.append(_at_least("capture", f"{policy}: median", median, _quantile(values, 0.5)))
        lines.append(_at_least("capture", f"{policy}: lower quartile", quartile, _quantile(values, 0.25)))
        if each is not None:
            services = {service for service, _ in found}
            worst = min(
                services, key=lambda name: _quantile([v for service, v in found if service == name], 0.5), default=""
            )
            lowest = _quantile([value for service, value in found if service == worst], 0.5)
            lines.append(_at_least("capture", f"{policy}: lowest median of a trace ({worst})", each, lowest))
    for policy, median in ((DISCO_D_STAR, 0.90), (DISCO_S_MEAN, 0.80)):
        values = [figures.capture(figures.oracle) for _, figures in _with_headroom(rows, policy)]
        lines.append(
            _at_least("capture", f"{policy}: median share of the oracle's gain", median, _quantile(values, 0.5))
        )
    return lines


def _mean(rows: Sequence[Row]) -> list[Line]:
    lines = []
    for peer, share in ((DISCO_D, 0.95), (DISCO_D_01, 0.85)):
        pairs = [(row.figures[peer], figures) for row, figures in _with_headroom(rows, DISCO_D_STAR)]
        held = [one.capture(one.optimum) >= other.capture(other.optimum) - 0.01 for other, one in pairs]
        claim = f"{DISCO_D_STAR}: rows at most 1 point of capture behind {peer}"
        lines.append(_at_least("mean", claim, share, _share(held)))
    costly = [
        row
        for row in rows
        if row.regime is Regime.SERVER_CONSTRAINED and row.fixed > row.server_mean + 0.2 and 0.1 <= row.budget <= 0.9
    ]
    gains = [
        1 - float(row.figures[DISCO_S_MEAN].mean.sum() / row.figures[DISCO_S].mean.sum())
        for row in costly
        if DISCO_S_MEAN in row.figures
    ]
    where = f"c + 1/decode > E[T_s] + .2 s ({len(costly)} rows)"
    better = _share([gain > 0 for gain in gains])
    lines.append(_at_least("mean", f"{DISCO_S_MEAN}: better than {DISCO_S} where {where}", 0.95, better))
    lines.append(_at_least("mean", f"{DISCO_S_MEAN}: median gain over {DISCO_S} there", 0.10, _quantile(gains, 0.5)))
    slower = [row.slower_than_peer[DISCO_S_STAR] > 0 for row in rows if DISCO_S_STAR in row.slower_than_peer]
    claim = f"{DISCO_S_STAR}: rows slower than {DISCO_S} beyond the interval"
    lines.append(_at_most("mean", claim, 0.01, _share(slower)))
    return lines


def _tail(rows: Sequence[Row]) -> list[Line]:
    lines = []
    for regime, most in ((Regime.DEVICE_CONSTRAINED, 0.0), (Regime.SERVER_CONSTRAINED, 0.01)):
        policy = DEFAULT[regime]
        found = _of(rows, policy)
        beyond = [any(low > 0 for low in figures.p99_worse.values()) for _, figures in found]
        claim = f"{policy}: rows with a P99 worse than chance beyond the interval"
        lines.append(_at_most("tail", claim, 0.0, _share(beyond)))
        far = [min(figures.p99_cut(reading) for reading in Reading) < -0.05 for _, figures in found]
        lines.append(_at_most("tail", f"{policy}: rows with a P99 more than 5 % worse", most, _share(far)))
    return lines


def _static_spend(rows: Sequence[Row]) -> list[Line]:
    lines = []
    for regime, policy in DEFAULT.items():
        found = _of(rows, policy)
        excess = np.array([figures.spent - row.budget for row, figures in found])
        if not excess.size:
            continue
        subject = f"static spend, {regime.value}"
        by_row = excess.mean(axis=1) * 100
        bias, low, high = float(by_row.mean()), float(by_row.min()), float(by_row.max())
        figure = f"{bias:+.2f} points (rows: {low:+.2f} to {high:+.2f})"
        lines.append(Line(subject, f"{policy}: bias over rows and splits", "within 1 point", figure, abs(bias) <= 1))
        for over, share in ((0.05, 0.80), (0.10, 0.95)):
            claim = f"{policy}: splits that spend at most b + {over:.2f}"
            lines.append(_at_least(subject, claim, share, float((excess <= over).mean())))
    return lines


def _ranges(rows: Sequence[Row]) -> list[Line]:
    """Averaged over budgets and devices, then the median over services; judged on the devices as reported, without
    overhead, and shown over all overheads as well."""
    lines = []
    targets: list[tuple[str, Reading, str, Callable[[Figures], float], float]] = [
        (policy, reading, what, cut, target)
        for reading, figures in (
            (Reading.EXCLUSIVE, ((DISCO_D_STAR, 0.18, 0.35), (DISCO_S_STAR, 0.25, 0.40))),
            (Reading.CONCURRENT, ((DISCO_D_STAR, 0.10, 0.07), (DISCO_S_STAR, 0.04, 0.30))),
        )
        for policy, mean, tail in figures
        for what, cut, target in (("mean", _mean_cut(reading), mean), ("P99", _p99_cut(reading), tail))
    ]
    for policy, reading, what, cut, target in targets:
        alpaca = [(row, cut(figures)) for row, figures in _of(rows, policy) if row.prompts == "alpaca"]
        judged, everywhere = (
            _median_of_services((row, c) for row, c in alpaca if row.overhead == 0),
            _median_of_services(alpaca),
        )
        claim = f"{policy}: {what} TTFT cut against {reading.value} chance, alpaca"
        figure = f"{judged:.1%} (all overheads: {everywhere:.1%})"
        lines.append(Line("paper's ranges", claim, f">= {target:.0%}", figure, judged >= target))
    return lines + _bounds_of_p99(rows)


def _bounds_of_p99(rows: Sequence[Row]) -> list[Line]:
    """What the judged half itself allows, as the ranges are averaged: no target can be above it."""
    bare = [row for row in rows if row.prompts == "alpaca" and row.overhead == 0]
    lines = []
    for reading in Reading:
        for regime, policy in DEFAULT.items():
            largest = _median_of_services((row, f.largest_p99_cut(reading)) for row, f in _of(bare, policy))
            claim = f"{regime.value}: largest P99 cut against {reading.value} chance, by any schedule, alpaca"
            lines.append(Line("paper's ranges", claim, "-", f"{largest:.1%}", None))
    return lines


def _median_of_services(found: Iterable[tuple[Row, float]]) -> float:
    by_service: dict[str, list[float]] = {}
    for row, value in found:
        by_service.setdefault(row.service, []).append(value)
    return _quantile([float(np.mean(values)) for values in by_service.values()], 0.5)


def _mean_cut(reading: Reading) -> Callable[[Figures], float]:
    return lambda figures: figures.mean_cut(reading)


def _p99_cut(reading: Reading) -> Callable[[Figures], float]:
    return lambda figures: figures.p99_cut(reading)


def _joint(rows: Sequence[JointRow]) -> list[Line]:
    """The devices as reported, without overhead, for the cut; all rows for what must not be worse."""
    lines = []
    for regime in Regime:
        bare = [row for row in rows if row.regime is regime and row.overhead == 0]
        useful = [row for row in bare if row.largest_cut > HEADROOM]
        median, everywhere = (_quantile([row.cut for row in some], 0.5) for some in (useful, bare))
        claim = f"{regime.value}: median cut of the mean by one budget over prefill and decode"
        figure = f"{median:.1%} ({len(useful)} rows with headroom; all {len(bare)}: {everywhere:.1%})"
        lines.append(Line("joint", claim, ">= 25%", figure, median >= 0.25))
        largest = _quantile([row.largest_cut for row in useful], 0.5)
        claim = f"{regime.value}: that median if every request raced"
        lines.append(Line("joint", claim, "-", f"{largest:.1%}", None))
        slower = [row.slower > 0 for row in rows if row.regime is regime]
        lines.append(_at_most("joint", f"{regime.value}: rows slower beyond the interval", 0.0, _share(slower)))
    return lines


# --- migration ------------------------------------------------------------------------------------------------------


_BREAK, _OVERLAP = Manner(MigrationMode.BREAK).name, Manner(MigrationMode.OVERLAP).name
_PARKING = Manner(MigrationMode.OVERLAP, parking=True).name


def _migration(savings: Sequence[Saving]) -> list[Line]:
    lines = []
    targets: list[tuple[Regime, str, Callable[[float], bool], str, float]] = [
        (Regime.DEVICE_CONSTRAINED, "device 10x as dear", lambda ratio: ratio == 10, _BREAK, 0.75),
        (Regime.DEVICE_CONSTRAINED, "device 10x as dear", lambda ratio: ratio == 10, _OVERLAP, 0.70),
        (Regime.SERVER_CONSTRAINED, "device at <= .05", lambda ratio: ratio <= 0.05, _BREAK, 0.80),
        (Regime.SERVER_CONSTRAINED, "device at <= .05", lambda ratio: ratio <= 0.05, _OVERLAP, 0.60),
        (Regime.SERVER_CONSTRAINED, "device at <= .05", lambda ratio: ratio <= 0.05, _PARKING, 0.75),
    ]
    for regime, where, chosen, manner, target in targets:
        saved = [s.saved for s in savings if s.regime is regime and s.manner == manner and chosen(s.ratio)]
        claim = f"{regime.value}, {where}: {manner} saves, best row"
        lines.append(_at_least("migration", claim, target, max(saved, default=float("nan"))))
    lines += [_reader(savings, manner, late, gap) for manner, late, gap in ((_OVERLAP, 0.1, 1.05), (_BREAK, 2.0, 2.0))]
    return lines


def _reader(savings: Sequence[Saving], manner: str, most_late: float, longest: float) -> Line:
    """What is worst for the reader over all rows; the services with a longer gap are named."""
    of_manner = [s for s in savings if s.manner.startswith(manner)]
    late = max((s.delay_num for s in of_manner), default=0.0)
    gap = max((s.longest_gap for s in of_manner), default=0.0) * READER
    heavy = sorted({s.service for s in of_manner if s.longest_gap * READER > longest})
    named = f" ({', '.join(heavy)})" if heavy else ""
    return Line(
        "migration",
        f"{manner}: worst row's mean delay_num, and P99 of the longest gap",
        f"<= {most_late:g}, <= {longest:g}/r_c",
        f"{late:.2f}, {gap:.2f}/r_c{named}",
        late <= most_late and gap <= longest,
    )


# --- scheduling -----------------------------------------------------------------------------------------------------

#: Seconds of a refit, and of a decision, at most.
_REFIT, _DECISION = 1e-3, 5e-6


def judge_overhead(measured: Sequence[Overhead], samples: int) -> list[Line]:
    """CPU time, each policy fitted to ``samples`` raw TTFTs and as many lengths."""
    return [
        Line(
            "overhead",
            f"{one.policy}: refit from {samples:,} raw TTFTs and lengths, and a decision",
            f"<= {_REFIT * 1e3:g} ms, <= {_DECISION * 1e6:g} us",
            f"{one.refit * 1e3:.2f} ms, {one.decision * 1e6:.1f} us",
            one.refit <= _REFIT and one.decision <= _DECISION,
        )
        for one in measured
    ]


# --- figures --------------------------------------------------------------------------------------------------------


def _quantile(values: Sequence[float], q: float) -> float:
    return float(np.quantile(values, q)) if values else float("nan")


def _share(held: Sequence[bool]) -> float:
    return sum(held) / len(held) if held else float("nan")


def _at_least(subject: str, claim: str, target: float, figure: float) -> Line:
    return Line(subject, claim, f">= {target:.0%}", f"{figure:.1%}", figure >= target)


def _at_most(subject: str, claim: str, target: float, figure: float) -> Line:
    return Line(subject, claim, f"<= {target:.0%}", f"{figure:.2%}", figure <= target)
