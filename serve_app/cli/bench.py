"""`disco bench`: the same open-loop load for one server or several, and what their clients saw."""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from serve_app.bench.charts import charts_of
from serve_app.bench.outcome import Outcome, Reader
from serve_app.bench.run import Limits, Target, connect, drive
from serve_app.bench.tally import Tally
from serve_app.bench.workload import Wish, Workload, plan
from serve_app.cli.bench_view import results
from serve_app.cli.complaints import BadArgument, complain, named_server
from serve_app.cli.exits import FAILED, INTERRUPTED, OK, UNFIT
from serve_app.cli.outputs import require_file, require_folder
from serve_app.client.errors import CallFailed
from serve_app.sim import plots
from serve_app.sim.tables import BadInput

_COLUMNS: Final = ("server", "number", "due_s", "late_s", "ttft_s", "duration_s", "tokens", "qoe", "cost_usd", "code")

#: In place of a variable's name: no key for this server.
NO_KEY: Final = "-"


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """models, key_envs: none, one for all servers, or one for each. rate: the reader's tokens per second.

    json_file: ``-`` for standard output. rows: a CSV with a line for each request.
    """

    urls: tuple[str, ...]
    models: tuple[str, ...]
    key_envs: tuple[str, ...]
    wish: Wish
    limits: Limits
    rate: float | None
    expected_ttft: float
    warm_up: bool
    json_file: str | None
    rows: Path | None
    plots: Path | None

    @property
    def reader(self) -> Reader:
        default = Reader()
        return Reader(default.rate if self.rate is None else self.rate, self.expected_ttft)


def bench(options: BenchOptions, console: Console) -> int:
    """Print what was measured, also what was until Ctrl-C; the exit code."""
    tallies: list[Tally] = []
    try:
        _check_outputs(options)
        workload = plan(options.wish)
        with _rows(options.rows) as write:
            try:
                asyncio.run(_run(options, workload, tallies, write))
            except KeyboardInterrupt:
                code = INTERRUPTED
            else:
                code = OK if all(tally.done > tally.failed for tally in tallies) else FAILED
        if any(tally.sent for tally in tallies):
            _tell(options, workload, tallies, console)
    except (BadArgument, CallFailed) as failure:
        return complain(failure)
    except BadInput as failure:
        return complain(BadArgument(str(failure)))
    except plots.PlotsMissing as missing:
        Console(stderr=True).print(Text(str(missing), "red"), soft_wrap=True)
        return UNFIT
    return code


def _check_outputs(options: BenchOptions) -> None:
    """Before anything is asked. Raises ``BadInput`` and ``PlotsMissing``."""
    if options.json_file not in (None, "-"):
        require_file("--json", Path(str(options.json_file)))
    if options.rows is not None:
        require_file("--rows", options.rows)
    if options.plots is not None:
        plots.require()
        require_folder("--plots", options.plots)


async def _run(
    options: BenchOptions, workload: Workload, tallies: list[Tally], write: Callable[[str, Outcome, float], None]
) -> None:
    targets: list[Target] = []
    try:
        for url, model, variable in zip(options.urls, _each(options, "model"), _each(options, "key_env"), strict=True):
            server = named_server(url, None, None if variable == NO_KEY else variable, "URL")
            targets.append(await connect(server, model, options.rate, options.warm_up))
        for target, name in zip(targets, _names(targets), strict=True):
            tallies.append(Tally(name, target.served.model, len(workload), options.wish.seed))
        with _progress(tallies) as show:
            await drive(targets, workload, options.limits, options.reader, _Book(tallies, write, show))
    finally:
        for target in targets:
            await target.close()


@dataclass(frozen=True, slots=True)
class _Book:
    """Counts what is sent and what comes back, and passes it on."""

    tallies: Sequence[Tally]
    write: Callable[[str, Outcome, float], None]
    show: Callable[[int], None]

    def sent(self, rank: int) -> None:
        self.tallies[rank].sent += 1

    def ended(self, rank: int, outcome: Outcome, elapsed: float) -> None:
        self.tallies[rank].take(outcome, elapsed)
        self.write(self.tallies[rank].name, outcome, elapsed)
        self.show(rank)


def _each(options: BenchOptions, what: str) -> Sequence[str | None]:
    given = options.models if what == "model" else options.key_envs
    if len(given) not in (0, 1, len(options.urls)):
        option = what.replace("_", "-")
        raise BadArgument(f"--{option}: give it once for all servers, or as often as there are URLs, in their order")
    return given * len(options.urls) if len(given) == 1 else given or [None] * len(options.urls)


def _names(targets: Sequence[Target]) -> list[str]:
    """By what tells them apart: the host; or else the model too; or else a number too."""
    hosts = [urlsplit(target.server.root).netloc for target in targets]
    full = [f"{host} {target.served.model}" for host, target in zip(hosts, targets, strict=True)]
    for names in (hosts, full):
        if len(set(names)) == len(names):
            return names
    return [f"{rank}: {name}" for rank, name in enumerate(full, 1)]


@contextmanager
def _progress(tallies: Sequence[Tally]) -> Iterator[Callable[[int], None]]:
    """A bar for each server on stderr while it is a terminal; yields what to call for each answer."""
    stderr = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[state]}"),
    )  # fmt: skip
    with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as progress:
        tasks = [progress.add_task(tally.name, total=tally.planned, state="") for tally in tallies]

        def show(rank: int) -> None:
            tally = tallies[rank]
            mean = f"TTFT {tally.ttft.total / tally.ttft.count:.2f} s on average" if tally.ttft.count else ""
            failed = f", {tally.failed} failed" if tally.failed else ""
            progress.update(
                tasks[rank], completed=tally.done, state=f"{tally.sent - tally.done} under way{failed}  {mean}"
            )

        yield show


@contextmanager
def _rows(path: Path | None) -> Iterator[Callable[[str, Outcome, float], None]]:
    """Writes a line for each request as it ends, so that nothing piles up."""
    with ExitStack() as stack:
        if path is None:
            yield lambda *_: None
            return
        try:
            file = stack.enter_context(path.open("w", encoding="utf-8", newline=""))
        except OSError as error:
            raise BadInput(f"--rows: {path} cannot be written ({error.strerror}); give another file") from None
        writer = csv.writer(file)
        writer.writerow(_COLUMNS)

        def write(server: str, one: Outcome, elapsed: float) -> None:
            due = elapsed - one.duration
            figures = (due, one.late, one.ttft, one.duration, one.tokens, one.qoe, one.cost)
            writer.writerow([server, one.number, *("" if x is None else f"{x:.6g}" for x in figures), one.code])

        yield write


def _tell(options: BenchOptions, workload: Workload, tallies: Sequence[Tally], console: Console) -> None:
    document: dict[str, Any] = {
        "workload": workload.source,
        "requests": len(workload),
        "seed": options.wish.seed,
        "reader_tokens_per_second": options.reader.rate,
        "expected_ttft_s": options.reader.expected,
        "servers": [tally.summary() for tally in tallies],
    }
    if options.json_file == "-":
        console.out(json.dumps(document, indent=1), highlight=False)
    else:
        console.print(results(tallies, workload.source))
    if options.json_file not in (None, "-"):
        path = Path(str(options.json_file))
        try:
            path.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
        except OSError as error:
            raise BadInput(f"--json: {path} cannot be written ({error.strerror}); give another file") from None
    if options.plots is not None:
        written = plots.draw(charts_of(tallies), options.plots)
        Console(stderr=True).print(f"{len(written)} plots in {options.plots}", highlight=False, soft_wrap=True)
