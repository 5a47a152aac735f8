"""What the plots of a run show: the distribution of each figure, one line for each server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from serve_app.bench.tally import Sample, Tally
from serve_app.sim.charts import Chart, Series

#: Points of a line: a million values draw no better than these.
_POINTS: Final = 500


def charts_of(tallies: Sequence[Tally]) -> list[Chart]:
    """Cumulative distributions of TTFT, TBT and QoE, where there is anything to show."""
    kinds = (
        ("ttft", "Time to first token, from when it was due", "seconds", True),
        ("tbt", "Time between tokens", "seconds", True),
        ("qoe", "Quality of experience", "1 is best", False),
    )
    charts = []
    for field, title, unit, log in kinds:
        series = [_line(tally.name, getattr(tally, field), log) for tally in tallies]
        shown = tuple(line for line in series if line.x)
        if shown:
            charts.append(Chart(f"bench-{field}-cdf", title, unit, "share", shown, percent=True, log=log))
    return charts


def _line(name: str, sample: Sample, log: bool) -> Series:
    # A logarithmic axis has no place for tokens that came together.
    ordered = sorted(value for value in sample.values if value > 0 or not log)
    skipped = len(sample.values) - len(ordered)
    ranks = sorted({round(point * (len(ordered) - 1) / _POINTS) for point in range(_POINTS + 1)}) if ordered else []
    x = tuple(ordered[rank] for rank in ranks)
    return Series(name, x, tuple((skipped + rank + 1) / len(sample.values) for rank in ranks))
