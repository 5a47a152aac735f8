"""The tables of `disco simulate`."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from serve_app.core.cost import Regime
from serve_app.sim.ablation import Saving
from serve_app.sim.closed import Closed
from serve_app.sim.policies import DEFAULT
from serve_app.sim.study import Point, Queueing, Scenario
from serve_app.sim.verdicts import Line


def sources(scenario: Scenario) -> RenderableType:
    """What was replayed, and where it comes from."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    dropped = scenario.service.dropped + scenario.prompts.dropped
    for word, name, source in (
        ("service", scenario.service.name, scenario.service.source),
        ("device", scenario.device.name, scenario.device.source),
        ("prompts", scenario.prompts.name, scenario.prompts.source),
    ):
        facts.add_row(word, Text(name if source == name else f"{name}: {source}"))
    if dropped:
        facts.add_row("dropped", f"{dropped} failed requests")
    if scenario.halved:
        facts.add_row("fitted to", "a random half of the service's TTFTs, replayed on the other half")
    return facts


def results(points: Sequence[Point], regime: Regime) -> RenderableType:
    """Policies by budgets: the mean above the P99."""
    here = [point for point in points if point.regime is regime]
    side = "device" if regime is Regime.DEVICE_CONSTRAINED else "server"
    table = _table(f"TTFT in seconds: mean, and P99 below it; the {side} may prefill the share b of all prompt tokens")
    table.add_column(regime.value, no_wrap=True)
    for budget in dict.fromkeys(point.budget for point in here):
        table.add_column(f"b = {budget:g}", justify="right", no_wrap=True)
    for policy in dict.fromkeys(point.policy for point in here):
        summaries = [point.summary for point in here if point.policy == policy]
        cells = [Text.assemble(f"{one.mean:.3f}\n", (f"{one.p99:.2f}", "dim")) for one in summaries]
        table.add_row(Text(policy, "bold" if policy in DEFAULT.values() else ""), *cells)
    return table


def closed_loop(found: Sequence[Closed]) -> RenderableType:
    """What the running service would spend and gain from its first request on."""
    table = _table(
        f"the default policy as it serves, from its first request on, over {found[0].requests} requests: it knows only "
        "what it has seen; share of the prompt tokens spent, TTFT in seconds, and how often it looked anew"
    )
    for column in ("closed loop", "b", "spent", "mean", "P99", "steps"):
        table.add_column(column, justify="left" if column == "closed loop" else "right", no_wrap=True)
    for one in found:
        table.add_row(
            one.regime.value, f"{one.budget:g}", f"{one.spent:.3f}", f"{one.mean:.3f}", f"{one.p99:.2f}", f"{one.steps}"
        )
    return table


def moves(savings: Sequence[Saving]) -> RenderableType:
    """What migration does to the default policy's cost."""
    (budget,) = {saving.budget for saving in savings}
    prices = " and ".join(f"{ratio:g}" for ratio in dict.fromkeys(saving.ratio for saving in savings))
    table = _table(
        f"answers that move to the cheaper side, under the default policy at b = {budget:g}, where a token of the "
        f"device costs {prices} times one of the server; cost against that without moves; P99 of the longest gap"
    )
    for column in ("moves", "of all", "cost", "late tokens", "longest gap"):
        table.add_column(column, justify="left" if column == "moves" else "right", no_wrap=True)
    for saving in savings:
        table.add_row(
            f"{saving.regime.value}, {saving.manner}",
            f"{saving.moved:.0%}",
            f"{-saving.saved:+.0%}",
            f"{saving.delay_num:.2f}",
            f"{saving.longest_gap:.2f} s" if saving.longest_gap else "-",
        )
    return table


def queues(found: Sequence[Queueing]) -> RenderableType:
    """What arrivals do to a device that serves one request at a time."""
    table = _table(
        "the default policy, with one request at a time on the device; TTFT in seconds: mean, the mean if "
        "nobody queued, and P99; share of the device's requests that queued"
    )
    for column in ("arrivals", "b", "mean", "unqueued", "P99", "queued"):
        table.add_column(column, justify="left" if column == "arrivals" else "right", no_wrap=True)
    for one in found:
        table.add_row(
            f"{one.pattern}, {one.regime.value}",
            f"{one.budget:g}",
            f"{one.mean:.3f}",
            f"{one.alone_mean:.3f}",
            f"{one.p99:.2f}",
            f"{one.queued:.1%}",
        )
    return table


def verdicts(lines: Sequence[Line]) -> RenderableType:
    """Target beside figure; what is missed is not hidden."""
    table = _table("")
    table.add_column("")
    for column in ("subject", "claim", "target", "figure"):
        table.add_column(column, overflow="fold")
    words = {True: Text("met", "green"), False: Text("missed", "bold red"), None: Text("")}
    for line in lines:
        table.add_row(words[line.met], line.subject, line.claim, line.target, line.figure)
    missed = sum(line.met is False for line in lines)
    judged = sum(line.met is not None for line in lines)
    return Group(table, Text(f"{judged - missed} of {judged} lines are met"))


def _table(caption: str) -> Table:
    return Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        caption=f"{caption}\n" if caption else None,
        caption_justify="left",
    )
