"""The router's metrics once more, through Ray's: every node's agent shows them as ``ray_`` and their name."""

from __future__ import annotations

from ray.util.metrics import Counter, Gauge, Histogram

from serve_app.instruments import CATALOGUE, Instrument, Kind


class RaySink:
    """Ray sends them to the node's agent by itself. Where several routers run, only there are all of them seen."""

    def __init__(self) -> None:
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}
        for each in CATALOGUE:
            match each.kind:
                case Kind.COUNTER:
                    self._counters[each.name] = Counter(each.name, each.help, each.labels)
                case Kind.GAUGE:
                    self._gauges[each.name] = Gauge(each.name, each.help, each.labels)
                case Kind.HISTOGRAM:
                    # Ray takes no bound that is not positive.
                    bounds = [bound for bound in each.buckets if bound > 0]
                    self._histograms[each.name] = Histogram(each.name, each.help, bounds, each.labels)

    def record(self, instrument: Instrument, value: float, labels: tuple[str, ...]) -> None:
        tags = dict(zip(instrument.labels, labels, strict=True))
        match instrument.kind:
            case Kind.COUNTER:
                if value > 0:
                    self._counters[instrument.name].inc(value, tags)
            case Kind.GAUGE:
                self._gauges[instrument.name].set(value, tags)
            case Kind.HISTOGRAM:
                self._histograms[instrument.name].observe(value, tags)
