"""Replay with arrivals: one server for everybody, and one device that serves one request at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serve_app.core.latency import LinearTtft
from serve_app.core.schedule import Delays
from serve_app.sim.requests import Requests


@dataclass(frozen=True, slots=True)
class Queued:
    """One entry per request, in seconds. waited: between the launch on the device and the begin of its prefill."""

    ttft: NDArray[np.float64]
    waited: NDArray[np.float64]
    server_started: NDArray[np.bool_]
    device_started: NDArray[np.bool_]


def replay_queued(
    requests: Requests, delays: Delays, arrivals: NDArray[np.float64], device: LinearTtft, device_rate: float
) -> Queued:
    """The device holds a request it won until its answer is complete, and one that it lost until the server's token.

    ``arrivals``: seconds, ascending. What the server answers while it queues at the device never starts there.
    """
    count = len(requests)
    out = Queued(np.empty(count), np.zeros(count), np.zeros(count, bool), np.zeros(count, bool))
    free = 0.0
    answers = (device.slope * requests.prompt_tokens + device.intercept).tolist()
    decoding = ((requests.output_tokens - 1) / device_rate).tolist()
    rows = zip(
        arrivals.tolist(),
        (delays.server + requests.server_ttft).tolist(),
        delays.server.tolist(),
        delays.device.tolist(),
        strict=True,
    )
    for row, (arrival, server_takes, server_delay, device_delay) in enumerate(rows):
        begin = max(arrival + device_delay, free)
        device_at = begin + answers[row]
        server_starts = server_delay <= device_delay or device_at > arrival + server_delay
        server_at = arrival + server_takes if server_starts else np.inf
        first = min(server_at, device_at)
        unqueued = begin == arrival + device_delay and device_delay <= server_delay
        if begin < np.inf and (unqueued or server_at > begin):
            out.device_started[row] = True
            out.waited[row] = begin - arrival - device_delay
            free = device_at + decoding[row] if device_at <= server_at else first
        out.server_started[row] = server_starts and server_at < np.inf
        out.ttft[row] = first - arrival
    return out
