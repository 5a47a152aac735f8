"""Charts as PNG and SVG files. Needs matplotlib, which only the extra ``sim`` installs."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from serve_app.extras import installing
from serve_app.sim.charts import Chart
from serve_app.sim.tables import BadInput


class PlotsMissing(RuntimeError):
    """matplotlib is not installed; the message says how to get it."""


def require() -> None:
    """Raises ``PlotsMissing`` if nothing can be drawn."""
    if find_spec("matplotlib") is None:
        raise PlotsMissing(f"--plots needs matplotlib, which is not installed; run: {installing('sim')}")


def draw(charts: Sequence[Chart], folder: Path) -> list[Path]:
    """Two files per chart, in ``folder``, which is made if need be. Raises ``BadInput`` if it cannot be written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    written = []
    for chart in charts:
        figure: Any = Figure(figsize=(7, 4.2), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        for series in chart.series:
            axes.plot(series.x, series.y, label=series.label, marker="" if len(series.x) > 50 else "o", markersize=3)
        axes.set(title=chart.title, xlabel=chart.x_label, ylabel=chart.y_label)
        if chart.log:
            axes.set_xscale("log")
        if chart.percent:
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
        for suffix in (".png", ".svg"):
            path = folder / f"{chart.name}{suffix}"
            try:
                folder.mkdir(parents=True, exist_ok=True)
                figure.savefig(path, dpi=120, metadata={"Date": None} if suffix == ".svg" else None)
            except OSError as error:
                raise BadInput(f"--plots: {path} cannot be written ({error.strerror}); give another folder") from None
            written.append(path)
    return written
