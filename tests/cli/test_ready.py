"""What /ready says, and what is no answer of the service's."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from serve_app.cli.ready import Readiness, ask, base_url, parse


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("::1", "http://[::1]:80"),
        ("localhost", "http://localhost:80"),
        ("192.0.2.7", "http://192.0.2.7:80"),
    ],
)
def test_where_a_client_on_this_machine_finds_it(host: str, url: str) -> None:
    assert base_url(host, 80) == url


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}", b'{"endpoints": []}', b"\xff", b"3"])
def test_what_is_no_answer(body: bytes) -> None:
    assert parse(body) is None


STATE = {
    "ready": True,
    "endpoints": {
        "cloud": {"ready": True, "reason": "ready"},
        "phone": {"ready": False, "reason": "loading"},
        "odd": 1,
    },
}
EXPECTED = Readiness(True, {"phone": "loading"}, ("cloud",))


def test_an_answer() -> None:
    assert parse(json.dumps(STATE).encode()) == EXPECTED


@contextmanager
def answering(raw: bytes) -> Iterator[str]:
    """One connection on loopback that says these bytes, whatever it is asked."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(raw)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join(10)


def http(status: str, body: bytes, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return f"HTTP/1.1 {status}\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n".encode() + body


@pytest.mark.parametrize("status", ["200 OK", "503 Service Unavailable"])
def test_both_of_its_answers_are_read(status: str) -> None:
    with answering(http(status, json.dumps(STATE).encode())) as url:
        assert ask(url) == EXPECTED


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"SSH-2.0-OpenSSH_9\r\n",
        http("200 OK", b"{", 100),
        http("503 Service Unavailable", b"{", 100),
        http("404 Not Found", b"nothing"),
    ],
)
def test_other_programs_and_broken_answers_are_not_ready_yet(raw: bytes) -> None:
    with answering(raw) as url:
        assert ask(url) is None


def test_nobody_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        assert ask(f"http://127.0.0.1:{taken.getsockname()[1]}") is None


def test_no_proxy_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with answering(http("200 OK", json.dumps(STATE).encode())) as url:
        assert ask(url) == EXPECTED
