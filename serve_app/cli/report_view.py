"""A request's report (the ``disco`` object) as tables for a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from serve_app.cli.colours import Colours


def report_view(report: dict[str, Any], colours: Colours) -> RenderableType:
    """Shows what is there: an older or newer server may send fewer or other fields."""
    parts: list[RenderableType] = [_headline(report), _legs(report, colours)]
    if report.get("migrations"):
        parts.append(_migrations(report, colours))
    elif report.get("verdicts"):
        parts.append(_verdicts(report))
    return Group(*parts)


def _headline(report: dict[str, Any]) -> Text:
    cost = report.get("cost_usd")
    notional = " (notional)" if report.get("cost_notional") else ""
    bound = "" if report.get("cost_exact", True) else "at most "
    facts = [
        f"policy {report.get('policy', '?')}: {report.get('reason', '')}",
        f"hedge {str(report.get('hedge', 'none')).replace('_', ' ')}",
        f"ttft {seconds(report.get('ttft_s'))}",
        f"tbt p99 {seconds(report.get('tbt_p99_s'))}",
        f"delayed tokens {report.get('delay_num', 0)}",
        f"qoe {number(report.get('qoe'))}",
        f"cost {bound}{money(cost)}{notional}",
        f"tokens {report.get('prompt_tokens', '?')} in (estimated {report.get('prompt_tokens_estimated', '?')}), "
        f"{report.get('completion_tokens', '?')} out",
    ]
    return Text("\n".join(facts[:1]) + "\n" + " | ".join(facts[1:]))


def _legs(report: dict[str, Any], colours: Colours) -> Table:
    table = Table("endpoint", "why", "start", "ttft", "tokens", "cost", "outcome", title="legs", title_justify="left")
    for leg in report.get("legs", []):
        name = str(leg.get("endpoint", "?"))
        label = Text(name, style=colours.of(name))
        if leg.get("imitates"):
            label.append(f"\nimitated: {leg['imitates']}", style="dim")
        outcome = str(leg.get("outcome", "?"))
        if leg.get("error"):
            outcome += f" ({leg['error']})"
        if leg.get("imitation_late_s"):
            outcome += f"\n{seconds(leg['imitation_late_s'])} later than imitated"
        table.add_row(
            label,
            Text(str(leg.get("reason", ""))),
            seconds(leg.get("start_s")),
            seconds(leg.get("ttft_s")),
            str(leg.get("tokens", 0)),
            money(leg.get("cost_usd")),
            Text(outcome),
        )
    return table


def _migrations(report: dict[str, Any], colours: Colours) -> Table:
    table = Table("from", "to", "at token", "mode", "why", "gap", "outcome", title="migrations", title_justify="left")
    for move in report["migrations"]:
        source, target = str(move.get("from", "?")), str(move.get("to", "?"))
        table.add_row(
            Text(source, style=colours.of(source)),
            Text(target, style=colours.of(target)),
            str(move.get("at_token", "?")),
            Text(str(move.get("mode", ""))),
            Text(str(move.get("reason", ""))),
            seconds(move.get("gap_s")),
            Text(str(move.get("outcome", ""))),
        )
    return table


def _verdicts(report: dict[str, Any]) -> Text:
    lines = [
        f"no migration to {verdict.get('target', '?')}: {str(verdict.get('verdict', '?')).replace('_', ' ')}"
        for verdict in report["verdicts"]
    ]
    return Text("\n".join(lines))


def seconds(value: Any) -> str:
    return f"{value:.3f} s" if isinstance(value, int | float) else "-"


def money(value: Any) -> str:
    return f"${value:.6f}" if isinstance(value, int | float) else "-"


def number(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, int | float) else "-"
