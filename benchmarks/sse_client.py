"""An SSE client that costs next to nothing while it runs: it stamps what arrives and reads it afterwards."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from dataclasses import dataclass

from actors.engines.openai_http_sse import EventParser
from serve_app.client.answers import DONE, read_chunk

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
        self._last = b""
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
        self._last = data[-len(_END) :] if len(data) >= len(_END) else (self._last + data)[-len(_END) :]
        if self._last == _END:
            self.done.set()

    def connection_lost(self, _: Exception | None) -> None:
        self.done.set()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def record(self, expected: int) -> StreamRecord:
        raw = b"".join(piece for _, piece in self._pieces)
        head, _, body = raw.partition(b"\r\n\r\n")
        payload, blocks = _unchunk(body)
        parser = EventParser()
        arrivals: list[Arrival] = []
        finishes, taken, read = 0, 0, len(body) - len(raw)
        done = False
        for at, piece in self._pieces:
            read += len(piece)
            there = _payload_in(blocks, read)
            for event in parser.feed(payload[taken:there]):
                if event.data == DONE:
                    done = True
                    continue
                chunk = read_chunk(event, at)
                finishes += chunk.finish is not None
                if chunk.shown is not None and chunk.shown > (arrivals[-1].tokens if arrivals else -1):
                    arrivals.append(Arrival(at, chunk.shown))
            taken = max(taken, there)
        tokens = arrivals[-1].tokens if arrivals else 0
        ok = head.startswith(b"HTTP/1.1 200") and tokens == expected and finishes == 1 and done
        return StreamRecord(self.sent, expected, tuple(arrivals), ok)


@dataclass(frozen=True, slots=True)
class _Block:
    """A chunk of HTTP's transfer coding: ``size`` bytes at ``raw`` of the body are those at ``payload``."""

    raw: int
    payload: int
    size: int


def _unchunk(body: bytes) -> tuple[bytes, list[_Block]]:
    payload = bytearray()
    blocks = []
    at = 0
    while (line := body.find(b"\r\n", at)) > at:
        size = int(body[at:line].split(b";")[0], 16)
        at = line + 2
        blocks.append(_Block(at, len(payload), size))
        payload += body[at : at + size]
        at += size + 2
        if size == 0:
            break
    return bytes(payload), blocks


def _payload_in(blocks: list[_Block], read: int) -> int:
    """Bytes of the payload that are among the first ``read`` of the body."""
    rank = bisect_right(blocks, read, key=lambda block: block.raw)
    if rank == 0:
        return 0
    block = blocks[rank - 1]
    return block.payload + min(block.size, read - block.raw)
