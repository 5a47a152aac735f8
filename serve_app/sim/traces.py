"""What a replay is fed with: TTFTs of a server, lengths of prompts and answers, arrivals; and a user's own logs.

Columns of one's own CSVs (further ones are ignored, and one file may serve for all):

    ttft_s          seconds to the first token; with an optional tbt_s, the mean seconds between the later ones
    prompt_tokens   at least 1; output_tokens, at least 0
    arrival_s       seconds since any origin, ascending

Where there is a column ``error``, rows in which it is not empty are failed requests: they are dropped and counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from serve_app.core.latency import LinearTtft
from serve_app.core.observations import theil_sen_slope
from serve_app.sim.tables import BadInput, Table, read_csv

#: Decode rate of a service of which only TTFTs are known, tokens per second: slower than all measured ones but one.
UNKNOWN_DECODE_RATE = 20.0
#: Newest rows that a device's line is fitted to: the fit looks at all pairs.
_MOST_FOR_LINE = 2000


@dataclass(frozen=True, slots=True)
class ServiceTrace:
    """TTFTs of a service in seconds, one per request, in the order measured; decode_rate in tokens per second.

    dropped: failed requests that were left out.
    """

    name: str
    ttft: NDArray[np.float64]
    decode_rate: float
    source: str
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class LengthTrace:
    """Tokens of each request's prompt (l, at least 1) and answer (n)."""

    name: str
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    source: str
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class ArrivalTrace:
    """Seconds at which requests arrive, ascending from 0."""

    name: str
    arrivals: NDArray[np.float64]
    source: str


@dataclass(frozen=True, slots=True)
class Device:
    """T_d(l) = l / prefill_rate + intercept; rates in tokens per second.

    intercept: seconds, with the first decode step in it.
    """

    name: str
    prefill_rate: float
    decode_rate: float
    intercept: float
    source: str

    @property
    def line(self) -> LinearTtft:
        return LinearTtft(1 / self.prefill_rate, self.intercept)


def own_service(path: Path) -> ServiceTrace:
    """Columns ``ttft_s`` and, if there, ``tbt_s``. Raises ``BadInput``."""
    table = _answered(read_csv(path, ["ttft_s"], ["tbt_s", "error"]))
    rate = UNKNOWN_DECODE_RATE
    if "tbt_s" in table.cells:
        rate = decode_rate(path, table.numbers("tbt_s"))
    return ServiceTrace(path.stem, table.numbers("ttft_s"), rate, str(path), table.dropped)


def own_lengths(path: Path) -> LengthTrace:
    """Columns ``prompt_tokens`` and ``output_tokens``. Raises ``BadInput``."""
    table = _answered(read_csv(path, ["prompt_tokens", "output_tokens"], ["error"]))
    prompts, outputs = table.counts("prompt_tokens", least=1), table.counts("output_tokens")
    return LengthTrace(path.stem, prompts, outputs, str(path), table.dropped)


def own_arrivals(path: Path) -> ArrivalTrace:
    """Column ``arrival_s``. Failed requests arrived too. Raises ``BadInput``."""
    times = read_csv(path, ["arrival_s"]).numbers("arrival_s", least=-np.inf)
    if (np.diff(times) < 0).any():
        raise BadInput(f"{path}: column arrival_s goes back in time; sort the rows by it")
    return ArrivalTrace(path.stem, times - times[0], str(path))


def own_device(path: Path) -> Device:
    """A robust line through a device's ``prompt_tokens`` and ``ttft_s``, with its ``tbt_s``. Raises ``BadInput``."""
    table = _answered(read_csv(path, ["prompt_tokens", "ttft_s", "tbt_s"], ["error"]))
    lengths = table.counts("prompt_tokens", least=1)[-_MOST_FOR_LINE:].astype(np.float64)
    ttfts = table.numbers("ttft_s")[-_MOST_FOR_LINE:]
    if np.unique(lengths).size < 2:
        raise BadInput(f"{path}: column prompt_tokens has one length only; a line needs prompts of several lengths")
    slope = theil_sen_slope(lengths, ttfts)
    if slope <= 0:
        raise BadInput(f"{path}: column ttft_s does not grow with prompt_tokens; this is no device's log")
    intercept = max(0.0, float(np.median(ttfts - slope * lengths)))
    return Device(path.stem, 1 / slope, decode_rate(path, table.numbers("tbt_s")), intercept, str(path))


def decode_rate(path: Path, tbt: NDArray[np.float64]) -> float:
    """Tokens per second of the median request; ``tbt`` in seconds."""
    middle = float(np.median(tbt))
    if middle <= 0:
        raise BadInput(f"{path}: column tbt_s is 0 for most rows; give the mean seconds between tokens")
    return 1 / middle


def _answered(table: Table) -> Table:
    if "error" not in table.cells:
        return table
    return table.without(lambda row: row["error"] != "")
