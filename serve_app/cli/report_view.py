"""The ``disco`` object of one answer, for reading."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from serve_app.cli.live_text import printable
from serve_app.core.migration import Verdict

#: Why a stream stayed where it was.
_STAYED: Final[Mapping[str, str]] = {
    Verdict.OFF: "migration is off for this request",
    Verdict.READER_UNKNOWN: "nobody said how fast the text is read",
    Verdict.LIMIT: "the stream has moved as often as it may",
    Verdict.CANNOT_CONTINUE: "it cannot continue a text that another endpoint began",
    Verdict.UNHEALTHY: "it failed recently",
    Verdict.CONTEXT: "prompt and answer do not fit its context",
    Verdict.NOT_CHEAPER: "its tokens are not cheaper",
    Verdict.SAVING: "the rest of the answer would save less than the move costs",
    Verdict.OPEN_CHARACTER: "the text ended inside a character",
    Verdict.BUFFER: "the reader never was far enough behind to hide the move",
    Verdict.BUSY: "all its slots were taken",
}


def render(report: Mapping[str, Any]) -> RenderableType:
    """A line for the decision, a table of legs, then a line for each thing that can be measured."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in _facts(report):
        facts.add_row(name, Text(printable(value)))
    policy = Text(printable(f"{_word(report.get('policy'))}: {_word(report.get('reason'))}"))
    return Group(Text.assemble(("policy  ", "dim"), policy), "", _legs(report), "", facts)


def summary(report: Mapping[str, Any]) -> Text:
    """One line: what the reader waited, what it cost, and the move if there was one."""
    moves = [f"{_word(move.get('from'))} → {_word(move.get('to'))}" for move in report.get("migrations", ())]
    facts = [f"TTFT {_seconds(report.get('ttft_s'))}", *moves, _total(report)]
    return Text(printable("   ".join(facts)), "dim")


def _legs(report: Mapping[str, Any]) -> Table:
    money = "notional\nUSD" if report.get("cost_notional") else "USD"
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    table.add_column("endpoint", overflow="fold", min_width=8)
    table.add_column("imitates", overflow="fold")
    table.add_column("why", no_wrap=True)
    for heading in ("start", "TTFT", "tokens", money):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("outcome", overflow="fold", min_width=11)
    for leg in report.get("legs", ()):
        error = leg.get("error")
        cells = (
            _word(leg.get("endpoint")),
            _word(leg.get("imitates"), ""),
            _word(leg.get("reason")),
            _seconds(leg.get("start_s")),
            _seconds(leg.get("ttft_s")),
            _word(leg.get("tokens")),
            _cost(leg.get("cost_usd"), leg.get("cost_exact")),
            _word(leg.get("outcome")) + (f" ({error})" if error else ""),
        )
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table


def _facts(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = [("moved", _move(migration)) for migration in report.get("migrations", ())]
    facts += [("no move", _stay(v)) for v in report.get("verdicts", ()) if v.get("verdict") != Verdict.GO]
    facts += [
        ("TTFT", _seconds(report.get("ttft_s"))),
        ("TBT p99", _seconds(report.get("tbt_p99_s"))),
        ("delay_num", _word(report.get("delay_num"))),
        ("QoE", _number(report.get("qoe"), ".3f")),
        ("cost", _total(report)),
        (
            "prompt tokens",
            f"{_word(report.get('prompt_tokens'))} counted, "
            f"{_word(report.get('prompt_tokens_estimated'))} estimated before dispatch",
        ),
        ("answer tokens", _word(report.get("completion_tokens"))),
    ]
    return facts


def _move(migration: Mapping[str, Any]) -> str:
    gap = migration.get("gap_s")
    return (
        f"{_word(migration.get('from'))} → {_word(migration.get('to'))} at token {_word(migration.get('at_token'))} "
        f"({_word(migration.get('reason'))}, {_word(migration.get('mode'))}): {_word(migration.get('outcome'))}"
        + (f", gap {_seconds(gap)}" if gap is not None else "")
    )


def _stay(verdict: Mapping[str, Any]) -> str:
    word = _word(verdict.get("verdict"))
    text = f"to {_word(verdict.get('target'))}: {_STAYED.get(word, word)}"
    if word == Verdict.SAVING:
        saving, overhead = _number(verdict.get("saving_usd"), ".3g"), _number(verdict.get("overhead_usd"), ".3g")
        text += f" ({saving} against {overhead} USD)"
    elif word == Verdict.BUFFER:
        lead, needed = _number(verdict.get("lead"), ".0f"), _number(verdict.get("buffer_needed"), ".1f")
        text += f" ({lead} tokens, {needed} needed)"
    return text


def _total(report: Mapping[str, Any]) -> str:
    text = f"{_cost(report.get('cost_usd'), report.get('cost_exact'))} USD"
    return f"{text}, notional: nobody is billed" if report.get("cost_notional") else text


def _cost(value: Any, exact: Any) -> str:
    """What was cut off may have cost more than it could report."""
    text = _number(value, ".3g")
    return text if exact or value is None else f"≥ {text}"


def _seconds(value: Any) -> str:
    text = _number(value, ".2f")
    return text if value is None else f"{text} s"


def _number(value: Any, form: str) -> str:
    return format(value, form) if isinstance(value, int | float) else _word(value)


def _word(value: Any, absent: str = "–") -> str:
    return absent if value is None else str(value)
