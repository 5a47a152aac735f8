"""The table of `disco bench`: a line for each figure, a column for each server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from serve_app.bench.outcome import OK
from serve_app.bench.tally import Sample, Tally
from serve_app.cli.live_text import printable

#: Seconds by which requests may be sent late before the figures are about this machine.
LATE: Final = 0.05

_NONE: Final = "–"


def results(tallies: Sequence[Tally], source: str) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("", no_wrap=True)
    for tally in tallies:
        table.add_column(printable(tally.name), justify="right", overflow="fold")
    for name, cell in _LINES:
        cells = [cell(tally) for tally in tallies]
        if any(text != _NONE for text in cells):
            table.add_row(name, *map(printable, cells))
    notes = [Text(f"{source}; all times count from when a request was due", "dim"), *_warnings(tallies)]
    return Group(table, "", *notes)


def _warnings(tallies: Sequence[Tally]) -> list[Text]:
    found = []
    for tally in tallies:
        for code, message in tally.messages.items():
            text = f"{tally.name}: {tally.codes[code]} x {code}: {message}"
            found.append(Text(printable(text), "red"))
        late = tally.late.at(0.99)
        if late is not None and late > LATE:
            text = (
                f"{tally.name}: 1 % of the requests were sent {late:.2f} s late or later; this machine, or --inflight, "
                "is too small for the load, and the figures include that"
            )
            found.append(Text(text, "yellow"))
    return found


def _seconds(field: str, share: float) -> Callable[[Tally], str]:
    def cell(tally: Tally) -> str:
        value = _sample(tally, field).at(share)
        return _NONE if value is None else f"{value:.3f} s"

    return cell


def _share(share: float) -> Callable[[Tally], str]:
    def cell(tally: Tally) -> str:
        value = tally.qoe.at(share)
        return _NONE if value is None else f"{value:.3f}"

    return cell


def _sample(tally: Tally, field: str) -> Sample:
    sample: Sample = getattr(tally, field)
    return sample


def _failed(tally: Tally) -> str:
    return str(tally.failed) if tally.failed else _NONE


def _unanswered(tally: Tally) -> str:
    return str(tally.sent - tally.done) if tally.sent > tally.done else _NONE


def _throughput(tally: Tally) -> str:
    return f"{tally.tokens / tally.elapsed:.1f}" if tally.tokens and tally.elapsed else _NONE


def _cost(tally: Tally) -> str:
    if not tally.priced:
        return _NONE
    return f"{tally.cost:.4g}" + (" notional" if tally.notional else "")


def _per_thousand(tally: Tally) -> str:
    return f"{tally.cost / tally.priced * 1000:.4g}" if tally.priced else _NONE


def _winners(tally: Tally) -> str:
    return ", ".join(f"{name} {count}" for name, count in tally.winners.most_common()) or _NONE


_LINES: Final[tuple[tuple[str, Callable[[Tally], str]], ...]] = (
    ("model", lambda tally: tally.model),
    ("answered", lambda tally: f"{tally.codes[OK]} of {tally.planned}"),
    ("failed", _failed),
    ("broken off", _unanswered),
    ("TTFT p50", _seconds("ttft", 0.5)),
    ("TTFT p90", _seconds("ttft", 0.9)),
    ("TTFT p99", _seconds("ttft", 0.99)),
    ("TBT p50", _seconds("tbt", 0.5)),
    ("TBT p99", _seconds("tbt", 0.99)),
    ("whole answer p50", _seconds("duration", 0.5)),
    ("whole answer p99", _seconds("duration", 0.99)),
    ("QoE p50", _share(0.5)),
    ("QoE p10", _share(0.1)),
    ("QoE p1", _share(0.01)),
    ("tokens per second", _throughput),
    ("USD", _cost),
    ("USD per 1000 requests", _per_thousand),
    ("first tokens", _winners),
    ("moves", lambda tally: str(tally.moves) if tally.moves else _NONE),
    ("sent late p99", _seconds("late", 0.99)),
)
