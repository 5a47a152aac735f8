"""The screen of `disco top`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from serve_app.cli.live_text import printable
from serve_app.cli.overview import EndpointNow, Overview, StreamNow
from serve_app.core.breaker import BreakerState
from serve_app.core.policies import PolicyName

_UNKNOWN: Final = "–"
#: Characters that a name or a state gets at least, so that the table can be read on 80 columns.
_SHORTEST: Final = 8
_ALARM: Final = {BreakerState.OPEN.value: "red", BreakerState.HALF_OPEN.value: "yellow"}


def render(now: Overview, most_streams: int) -> RenderableType:
    """``most_streams``: lines that streams may take."""
    parts: list[RenderableType] = [_facts(now), "", _endpoints(now)]
    if now.streams is None:
        parts.append(Text("\nstreams are listed to a key with `scope: operator` only", "dim"))
    elif now.streams:
        parts += ["", _streams(now.streams[:most_streams])]
        if (now.streams_running or 0) > most_streams:
            parts.append(Text(f"and {(now.streams_running or 0) - most_streams} more", "dim"))
    return Group(*parts)


def _facts(now: Overview) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in _lines(now):
        grid.add_row(name, Text(printable(text)))
    return grid


def _lines(now: Overview) -> Iterator[tuple[str, str]]:
    moves = "" if now.moves is None else f", {now.moves} moves"
    yield "streams", f"{_number(now.streams_running)} under way, {_number(now.streams_over)} over{moves}"
    if now.policy is not None:
        yield "policy", now.policy
    if now.spent_share is not None:
        yield "budget", _budget(now, now.spent_share)
    if now.cost_usd is not None:
        yield "cost", f"{now.cost_usd:.4g} USD" + (", notional: nobody is billed" if now.notional else "")
    if now.compared_usd is not None and now.cloud_only_usd and now.device_only_usd:
        yield (
            "instead of",
            f"{now.cloud_only_usd:.4g} USD in the cloud only ({_saved(now.compared_usd, now.cloud_only_usd)}), "
            f"{now.device_only_usd:.4g} USD on devices only ({_saved(now.compared_usd, now.device_only_usd)})",
        )
    if now.replicas is not None and now.replicas > 1:
        yield "router", f"one of {now.replicas}; the others count by themselves"


def _budget(now: Overview, spent: float) -> str:
    side = f"the {now.constrained}" if now.constrained else "the constrained side"
    tokens = "all tokens" if now.policy == PolicyName.JOINT else "all prompt tokens"
    text = f"{side} has processed {spent:.1%} of {tokens} so far"
    if now.budget is None:
        return text
    over = "; what is too much, later requests make up for" if spent > now.budget else ""
    return f"{text}; {now.budget:.1%} is allowed{over}"


def _saved(spent: float, alone: float) -> str:
    return f"{(spent - alone) / alone:+.0%}"


def _endpoints(now: Overview) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    table.add_column("endpoint", overflow="fold", min_width=_SHORTEST)
    table.add_column("kind", no_wrap=True)
    table.add_column("state", overflow="fold", min_width=_SHORTEST)
    for heading in ("busy", "queue", "TTFT p50/90", "tok/s", "first", "USD"):
        table.add_column(heading, justify="right", no_wrap=True)
    for endpoint in now.endpoints:
        table.add_row(
            Text(printable(endpoint.name)),
            endpoint.kind or _UNKNOWN,
            _state(endpoint),
            f"{_number(endpoint.running)}/{_number(endpoint.slots)}",
            _seconds(endpoint.queue_s),
            f"{_number(endpoint.ttft_p50_s, '.2f')}/{_seconds(endpoint.ttft_p90_s)}",
            _number(endpoint.decode_rate, ".1f"),
            _number(endpoint.wins),
            _number(endpoint.cost_usd, ".4g"),
        )
    return table


def _state(endpoint: EndpointNow) -> Text:
    if not endpoint.ready:
        return Text(printable(f"not ready: {endpoint.reason}" if endpoint.reason else "not ready"), "red")
    if endpoint.breaker in _ALARM:
        return Text(f"breaker {endpoint.breaker}".replace("_", " "), _ALARM[endpoint.breaker])
    return Text("ready", "green")


def _streams(streams: Sequence[StreamNow]) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for heading in ("model", "phase", "owner"):
        table.add_column(heading, overflow="fold")
    for heading in ("age", "tokens", "lead", "moves"):
        table.add_column(heading, justify="right", no_wrap=True)
    for stream in streams:
        table.add_row(
            Text(printable(stream.model)),
            stream.phase,
            Text(printable(stream.owner or _UNKNOWN)),
            _seconds(stream.age_s),
            str(stream.accepted),
            f"{stream.lead:.0f}",
            str(stream.moves),
        )
    return table


def _seconds(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.2f} s"


def _number(value: float | None, form: str = "") -> str:
    return _UNKNOWN if value is None else format(value, form)
