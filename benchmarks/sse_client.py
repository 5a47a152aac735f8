"""An SSE client that costs next to nothing while it runs: it stamps what arrives and reads it afterwards."""

from __future__ import annotations

import asyncio
import json
import re
import time
from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

_EVENT = re.compile(rb"id: (\d+)\ndata: (.*)\n\n")
_END = b"0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Arrival:
    """One event: ``tokens`` of the answer are complete with it. ``at``: seconds of ``time.perf_counter``."""

    at: float
    tokens: int


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """``complete``: status 200, all ``expected`` tokens, one finish_reason, and [DONE] at the end."""

    sent: float
    expected: int
    arrivals: tuple[Arrival, ...]
    complete: bool


class StreamClient(asyncio.Protocol):
    """Posts ``body`` when it is connected; ``done`` is set at the end of the answer or of the connection."""

    def __init__(self, host: str, path: str, body: bytes) -> None:
        self.done = asyncio.Event()
        self.sent = 0.0
        self._pieces: list[tuple[float, bytes]] = []
        self._request = (
            f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        ).encode() + body
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def send(self) -> None:
        assert self._transport is not None
        self.sent = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._pieces.append((time.perf_counter(), data))
        if data.endswith(_END):
            self.done.set()

    def connection_lost(self, _: Exception | None) -> None:
        self.done.set()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def record(self, expected: int) -> StreamRecord:
        raw = b"".join(piece for _, piece in self._pieces)
        head, _, body = raw.partition(b"\r\n\r\n")
        payload, origin = _unchunk(body)
        starts = len(raw) - len(body)
        ends = list(accumulate(len(piece) for _, piece in self._pieces))
        arrivals: list[Arrival] = []
        finishes = 0
        done = False
        for event in _EVENT.finditer(payload):
            if event[2] == b"[DONE]":
                done = True
                continue
            choice: dict[str, Any] = json.loads(event[2])["choices"][0]
            finishes += choice["finish_reason"] is not None
            at = self._pieces[bisect_left(ends, starts + _raw_end(origin, event.end()))][0]
            if not arrivals or int(event[1]) > arrivals[-1].tokens:
                arrivals.append(Arrival(at, int(event[1])))
        tokens = arrivals[-1].tokens if arrivals else 0
        ok = head.startswith(b"HTTP/1.1 200") and tokens == expected and finishes == 1 and done
        return StreamRecord(self.sent, expected, tuple(arrivals), ok)


def _unchunk(body: bytes) -> tuple[bytes, list[tuple[int, int]]]:
    """The payload, and for each chunk (payload offset, raw offset) of its first byte."""
    payload = bytearray()
    origin = []
    at = 0
    while (line := body.find(b"\r\n", at)) > at:
        size = int(body[at:line].split(b";")[0], 16)
        at = line + 2
        origin.append((len(payload), at))
        payload += body[at : at + size]
        at += size + 2
        if size == 0:
            break
    return bytes(payload), origin


def _raw_end(origin: list[tuple[int, int]], end: int) -> int:
    """Where the payload's byte before ``end`` ends in the raw body."""
    payload, raw = origin[bisect_left(origin, (end, 0)) - 1]
    return raw + end - payload
