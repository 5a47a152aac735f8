"""What a running service tells about itself: ``/disco/live``, or ``/metrics`` and ``/ready`` where that is closed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from serve_app.cli.ready import Readiness, parse
from serve_app.client.calls import call, json_of
from serve_app.client.errors import CallFailed, Cause
from serve_app.client.server import Server
from serve_app.core.breaker import BreakerState
from serve_app.core.stats import percentile

#: As the gauge ``disco_breaker_state`` counts them.
_BREAKERS: Final = (BreakerState.CLOSED, BreakerState.HALF_OPEN, BreakerState.OPEN)


@dataclass(frozen=True, slots=True)
class EndpointNow:
    """Seconds, tokens per second, USD since the start. None: not told. ``wins``: first tokens."""

    name: str
    ready: bool
    reason: str = ""
    kind: str | None = None
    breaker: str | None = None
    running: int | None = None
    slots: int | None = None
    queue_s: float | None = None
    ttft_p50_s: float | None = None
    ttft_p90_s: float | None = None
    decode_rate: float | None = None
    wins: int | None = None
    cost_usd: float | None = None


@dataclass(frozen=True, slots=True)
class StreamNow:
    """``age_s``: seconds. accepted: tokens so far; lead: tokens that the reader has not read yet."""

    model: str
    age_s: float
    phase: str
    owner: str | None
    accepted: int
    lead: float
    moves: int


@dataclass(frozen=True, slots=True)
class Overview:
    """Of one router replica. Shares are of all tokens that count for the budget; costs in USD since the start.

    streams: those under way, the newest first; None where the service lists them to nobody who asks.
    """

    endpoints: Sequence[EndpointNow]
    streams: Sequence[StreamNow] | None = None
    streams_running: int | None = None
    streams_over: int | None = None
    moves: int | None = None
    policy: str | None = None
    constrained: str | None = None
    budget: float | None = None
    spent_share: float | None = None
    cost_usd: float | None = None
    cloud_only_usd: float | None = None
    device_only_usd: float | None = None
    compared_usd: float | None = None
    notional: bool = False
    replicas: int | None = None


async def look(session: aiohttp.ClientSession, server: Server) -> Overview:
    """Raises ``CallFailed`` where neither way leads to anything."""
    try:
        async with call(session, "GET", f"{server.root}/disco/live") as response:
            document = json_of(await response.read())
    except CallFailed as closed:
        if closed.status not in (401, 403, 404):
            raise
        return await _by_metrics(session, server, closed)
    try:
        return from_live(document, await _readiness(session, server))
    except (KeyError, TypeError, ValueError, AttributeError):
        message = f"{server.root}/disco/live says something else than a DiSCo-Serve of this version"
        raise CallFailed(message, Cause.FAILED) from None


async def _by_metrics(session: aiohttp.ClientSession, server: Server, closed: CallFailed) -> Overview:
    readiness = await _readiness(session, server)
    if readiness is None:
        raise CallFailed(f"{server.root} is no DiSCo-Serve: it has neither /disco/live nor /ready", Cause.FAILED)
    try:
        async with call(session, "GET", f"{server.root}/metrics") as response:
            text = (await response.read()).decode("utf-8", "replace")
    except CallFailed as failure:
        # With no key at all, what is said about the first door fits both.
        raise closed if failure.status in (401, 403) else failure from None
    return from_metrics(text, readiness)


async def _readiness(session: aiohttp.ClientSession, server: Server) -> Readiness | None:
    try:
        async with call(session, "GET", f"{server.root}/ready", accept=(200, 503)) as response:
            return parse(await response.read())
    except CallFailed as failure:
        if failure.status is None:
            raise
        return None


def from_live(document: Mapping[str, Any], readiness: Readiness | None) -> Overview:
    """Raises KeyError, TypeError or ValueError where it is another kind of document."""
    budget, compared = document["budget"], document["cost"]["compared"]
    waiting = {} if readiness is None else readiness.waiting
    return Overview(
        endpoints=[_endpoint(entry, waiting) for entry in document["endpoints"]],
        streams=[
            StreamNow(
                stream["model"],
                stream["age_s"],
                stream["phase"],
                stream["owner"],
                stream["accepted"],
                stream["lead"],
                stream["moves"],
            )
            for stream in document["streams"]
        ],
        streams_running=document["streams_running"],
        streams_over=document["streams_over"],
        moves=document["moves"],
        policy=document["policy"]["policy"]["name"],
        constrained=budget["constrained"],
        budget=budget["share"],
        spent_share=budget["spent_share"],
        cost_usd=document["cost"]["spent_usd"],
        cloud_only_usd=compared["cloud_only_usd"],
        device_only_usd=compared["device_only_usd"],
        compared_usd=compared["spent_usd"],
        notional=document["notional"],
        replicas=document["replicas"],
    )


def _endpoint(entry: Mapping[str, Any], waiting: Mapping[str, str]) -> EndpointNow:
    ttfts = entry["ttft_s"]
    return EndpointNow(
        name=entry["endpoint"],
        ready=entry["ready"],
        reason=waiting.get(entry["endpoint"], ""),
        kind=entry["kind"],
        breaker=entry["breaker"],
        running=entry["legs_running"],
        slots=entry["slots"],
        queue_s=entry["queue_s"],
        ttft_p50_s=percentile(ttfts, 0.5) if ttfts else None,
        ttft_p90_s=percentile(ttfts, 0.9) if ttfts else None,
        decode_rate=entry["decode_rate"],
        wins=entry["wins"],
        cost_usd=entry["cost_usd"],
    )


def from_metrics(text: str, readiness: Readiness) -> Overview:
    """What Prometheus may know: no streams, and neither slots nor queues."""
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            by = found.setdefault(sample.name, {})
            where = sample.labels.get("endpoint", "")
            by[where] = by.get(where, 0.0) + sample.value

    def value(name: str, where: str = "") -> float | None:
        return found.get(name, {}).get(where)

    def count(name: str, where: str = "") -> int | None:
        number = value(name, where)
        return None if number is None else int(number)

    def endpoint(name: str) -> EndpointNow:
        state = count("disco_breaker_state", name)
        return EndpointNow(
            name=name,
            ready=name not in readiness.waiting,
            reason=readiness.waiting.get(name, ""),
            breaker=None if state is None else _BREAKERS[state].value,
            wins=count("disco_wins_total", name),
            cost_usd=value("disco_cost_usd_total", name),
        )

    costs = found.get("disco_cost_usd_total")
    return Overview(
        endpoints=[endpoint(name) for name in (*readiness.warm, *readiness.waiting)],
        streams_running=count("disco_streams_running"),
        streams_over=count("disco_requests_total"),
        spent_share=value("disco_budget_share"),
        cost_usd=None if costs is None else sum(costs.values()),
    )
