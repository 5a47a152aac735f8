"""What the router counts and measures, once per request and never per token, and where that goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from serve_app import instruments as i
from serve_app.instruments import CATALOGUE, Instrument, Kind
from serve_app.telemetry import PROVIDER, Operation

#: The values of a gauge now, by its labels' values.
Reading = Mapping[tuple[str, ...], float]


class Sink(Protocol):
    """Somewhere metrics are shown."""

    def record(self, instrument: Instrument, value: float, labels: tuple[str, ...]) -> None:
        """Add to a counter, set a gauge, or observe for a histogram. ``labels``: values, in the instrument's order."""
        ...


@dataclass(frozen=True, slots=True)
class Times:
    """Of one request, in seconds of one clock. The router received its first content, and delivered it."""

    arrived: float
    received: float | None
    delivered: float | None
    ended: float


class Metrics:
    """``model`` is always a served name, so labels stay few. One router replica has one of these."""

    def __init__(self) -> None:
        self._prometheus = PrometheusSink()
        self._sinks: list[Sink] = [self._prometheus]
        self._gauges: list[tuple[Instrument, Callable[[], Reading]]] = []

    def also_to(self, sink: Sink) -> None:
        self._sinks.append(sink)

    def watch(self, gauge: Instrument, read: Callable[[], Reading]) -> None:
        """``read`` is asked whenever somebody looks."""
        self._gauges.append((gauge, read))

    def failed(self, code: str) -> None:
        """A request ended with an error before it had a report."""
        self._record(i.REQUESTS, 1, code)

    def observe(self, model: str, operation: Operation, report: Mapping[str, Any], times: Times, code: str) -> None:
        """A stream is over. ``code``: ok, cancelled, or the error's."""
        genai = (operation, PROVIDER, model)
        error = "" if code in ("ok", "cancelled") else code
        tokens, seconds = report["completion_tokens"], times.ended - times.arrived
        self._record(i.REQUESTS, 1, code)
        self._record(i.REQUEST_DURATION, seconds, *genai, error)
        self._record(i.TOKEN_USAGE, report["prompt_tokens"], *genai, "input")
        self._record(i.TOKEN_USAGE, tokens, *genai, "output")
        if times.received is not None:
            self._record(i.TIME_TO_FIRST_TOKEN, times.received - times.arrived, *genai)
            if tokens > 1 and code == "ok":
                self._record(i.TIME_PER_OUTPUT_TOKEN, (times.ended - times.received) / (tokens - 1), *genai)
        if times.delivered is not None:
            self._record(i.DELIVERED, times.delivered - times.arrived, *genai)
        if report["qoe"] is not None:
            self._record(i.QOE, report["qoe"], *genai)
        self._decisions(report)

    def _decisions(self, report: Mapping[str, Any]) -> None:
        self._record(i.HEDGES, 1, report["hedge"])
        if report["winner"] is not None:
            self._record(i.WINS, 1, report["winner"])
        for leg in report["legs"]:
            self._record(i.LEGS, 1, leg["endpoint"], leg["kind"], leg["reason"], leg["outcome"])
            self._record(i.COST, leg["cost_usd"], leg["endpoint"], leg["kind"])
            if leg["ttft_s"] is not None:
                self._record(i.LEG_TTFT, leg["ttft_s"], leg["endpoint"])
            if leg["queued_s"] is not None:
                self._record(i.LEG_QUEUE, leg["queued_s"], leg["endpoint"])
        for migration in report["migrations"]:
            self._record(i.MIGRATIONS, 1, migration["reason"], migration["outcome"])
        if any(m["outcome"] == "completed" and m["reason"] != "resume" for m in report["migrations"]):
            self._record(i.DELAY_NUM, report["delay_num"])

    def publish(self, sink: Sink) -> None:
        """Tell it what the gauges show now."""
        for gauge, read in self._gauges:
            for labels, value in read().items():
                sink.record(gauge, value, labels)

    def render(self) -> bytes:
        """Prometheus' text format."""
        self._prometheus.forget_gauges()
        self.publish(self._prometheus)
        return generate_latest(self._prometheus.registry)

    def _record(self, instrument: Instrument, value: float, *labels: str) -> None:
        for sink in self._sinks:
            sink.record(instrument, value, labels)


class PrometheusSink:
    """A registry of its own, so that two routers in a process count apart."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}
        for each in CATALOGUE:
            match each.kind:
                case Kind.COUNTER:
                    self._counters[each.name] = Counter(each.name, each.help, each.labels, registry=self.registry)
                case Kind.GAUGE:
                    self._gauges[each.name] = Gauge(each.name, each.help, each.labels, registry=self.registry)
                case Kind.HISTOGRAM:
                    self._histograms[each.name] = Histogram(
                        each.name, each.help, each.labels, buckets=each.buckets, registry=self.registry
                    )

    def forget_gauges(self) -> None:
        """Of what is gone, such as a device that left, no last value stays."""
        for gauge in self._gauges.values():
            gauge.clear()

    def record(self, instrument: Instrument, value: float, labels: tuple[str, ...]) -> None:
        match instrument.kind:
            case Kind.COUNTER:
                counter = self._counters[instrument.name]
                (counter.labels(*labels) if labels else counter).inc(value)
            case Kind.GAUGE:
                gauge = self._gauges[instrument.name]
                (gauge.labels(*labels) if labels else gauge).set(value)
            case Kind.HISTOGRAM:
                histogram = self._histograms[instrument.name]
                (histogram.labels(*labels) if labels else histogram).observe(value)
