"""The benchmarks' own client stamps raw pieces and reads them afterwards: each token gets its last byte's time."""

from __future__ import annotations

import json
import random

import pytest

from benchmarks.sse_client import StreamClient

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def event(tokens: int, finish: str | None = None) -> bytes:
    choice = {"delta": {"content": "x"}, "finish_reason": finish}
    return f"id: {tokens}\ndata: {json.dumps({'choices': [choice]})}\n\n".encode()


def chunked(payload: bytes, dice: random.Random) -> bytes:
    raw, rest = HEAD, payload
    while rest:
        size = dice.randint(1, 90)
        raw += b"%x\r\n" % len(rest[:size]) + rest[:size] + b"\r\n"
        rest = rest[size:]
    return raw + b"0\r\n\r\n"


def received(raw: bytes, sizes: list[int]) -> StreamClient:
    """In pieces of these sizes, the last for all that is left; stamped by the real clock as they come."""
    client = StreamClient("h", "/", b"")
    for size in sizes:
        client.data_received(raw[:size])
        raw = raw[size:]
    client.data_received(raw)
    return client


@pytest.mark.parametrize("seed", range(20))
def test_pieces_of_any_size_say_the_same(seed: int) -> None:
    dice = random.Random(seed)
    payload = b"".join(map(event, range(1, 11))) + event(10, "stop") + b"id: 10\ndata: [DONE]\n\n"
    raw = chunked(payload, dice)
    client = received(raw, [dice.choice([1, 5, 50, 500]) for _ in range(12)])
    assert client.done.is_set()
    record = client.record(10)
    assert record.complete
    assert [arrival.tokens for arrival in record.arrivals] == list(range(1, 11))
    assert [arrival.at for arrival in record.arrivals] == sorted(arrival.at for arrival in record.arrivals)


def test_a_token_came_when_its_events_last_byte_did() -> None:
    first, second = event(1), event(2)
    raw = HEAD + b"%x\r\n" % (len(first) + len(second)) + first + second + b"\r\n"
    # All of the first event but its last byte; that byte; the second event.
    cut = len(raw) - len(second) - 2 - 1
    client = received(raw, [cut, 1])
    stamps = [at for at, _ in client._pieces]
    assert [arrival.at for arrival in client.record(2).arrivals] == stamps[1:]


@pytest.mark.parametrize(
    "payload", [event(1), event(1, "stop"), event(1) + b"id: 1\ndata: [DONE]\n\n", b"id: 0\ndata: [DONE]\n\n"]
)
def test_what_lacks_a_token_a_reason_or_its_end_is_incomplete(payload: bytes) -> None:
    assert not received(chunked(payload, random.Random(0)), []).record(1).complete
