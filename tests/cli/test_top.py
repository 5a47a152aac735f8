"""`disco top`: what it shows of a snapshot or of the metrics, and what it says where it may see neither."""

from __future__ import annotations

import io
import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from serve_app.cli.exits import BAD_INPUT, FAILED, INTERRUPTED, OK, UNREACHABLE
from serve_app.cli.main import app
from serve_app.cli.overview import EndpointNow, Overview, StreamNow, from_live, from_metrics
from serve_app.cli.ready import Readiness
from serve_app.cli.top import TopOptions, top
from serve_app.cli.top_view import render
from serve_app.instruments import BUDGET_SHARE
from serve_app.metrics import Metrics, Times
from tests.http.fakes import REPORT
from tests.support.answering import answering
from tests.support.scripted import ScriptedEndpoint, words
from tests.support.scripted_service import Stack
from tests.support.session_stage import CLOUD, PHONE
from tests.support.virtual_loop import run_virtual

LIVE: dict[str, Any] = {
    "replicas": 2,
    "notional": True,
    "policy": {"policy": {"name": "paper", "budget": 0.4}, "regime": "auto"},
    "budget": {"share": 0.4, "spent_share": 0.385, "constrained": "device"},
    "endpoints": [
        {"endpoint": "cloud", "kind": "cloud", "ready": True, "breaker": "closed", "legs_running": 3, "slots": 4,
         "queue_s": 0.0, "decode_rate": 26.0, "wins": 12, "cost_usd": 0.5, "ttft_s": [0.5, 1.0, 2.0]},
        {"endpoint": "phone", "kind": "device", "ready": False, "breaker": "open", "legs_running": 0, "slots": 2,
         "queue_s": 1.5, "decode_rate": 21.0, "wins": 3, "cost_usd": 0.25, "ttft_s": []},
    ],
    "cost": {"spent_usd": 0.75, "compared": {"answers": 15, "spent_usd": 0.7, "cloud_only_usd": 1.4,
                                            "device_only_usd": 0.5}},
    "streams_over": 15,
    "moves": 4,
    "streams_running": 2,
    "streams": [
        {"model": "disco", "age_s": 1.25, "phase": "decode", "owner": "cloud", "accepted": 40, "lead": 12, "moves": 1},
        {"model": "disco", "age_s": 0.5, "phase": "prefill", "owner": None, "accepted": 0, "lead": 0, "moves": 0},
    ],
}  # fmt: skip
READY = {
    "ready": True,
    "endpoints": {"cloud": {"ready": True, "reason": ""}, "phone": {"ready": False, "reason": "loading"}},
}

NO_KEY = {"error": {"message": "no key"}}


def metrics() -> str:
    found = Metrics()
    found.observe("disco", "chat", REPORT, Times(0.0, 0.5, 0.6, 1.0), "ok")
    found.watch(BUDGET_SHARE, lambda: {(): 0.25})
    return found.render().decode()


@contextmanager
def service(**pages: Any) -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """Answers GET /live, /metrics and /ready as it is told; the URL, and who asked for what."""
    asked: list[tuple[str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers.get("authorization")))
            page = pages.get(self.path.rpartition("/")[2], (404, {"error": {"message": "nothing here"}}))
            status, body = page() if callable(page) else page
            text = body if isinstance(body, str) else json.dumps(body)
            self.send_response(status)
            self.send_header("content-length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            pass

    with answering(Handler) as url:
        yield url, asked


def run(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["top", "--url", url, *arguments], env={"COLUMNS": "120", "TERM": "dumb"})


def test_everything_that_the_service_says() -> None:
    with service(live=(200, LIVE), ready=(503, READY)) as (url, _):
        result = run(url)
    assert result.exit_code == OK
    lines = [line.split() for line in result.output.splitlines() if line.strip()]
    assert ["streams", "2", "under", "way,", "15", "over,", "4", "moves"] in lines
    assert "the device has processed 38.5% of all prompt tokens so far; 40.0% is allowed\n" in result.output
    assert "1.4 USD in the cloud only (-50%), 0.5 USD on devices only (+40%)" in result.output
    assert "one of 2" in result.output
    cloud = next(line for line in lines if line[0] == "cloud")
    assert cloud == ["cloud", "cloud", "ready", "3/4", "0.00", "s", "1.00/2.00", "s", "26.0", "12", "0.5"]
    assert "not ready: loading" in result.output
    assert ["disco", "decode", "cloud", "1.25", "s", "40", "12", "1"] in lines


def test_json_is_the_same() -> None:
    with service(live=(200, LIVE), ready=(200, READY)) as (url, _):
        document = json.loads(run(url, "--json").stdout)
    assert document["streams_running"] == 2
    assert document["endpoints"][0]["ttft_p90_s"] == 2.0
    assert document["endpoints"][1]["reason"] == "loading"
    assert document["streams"][1]["owner"] is None


@pytest.mark.parametrize("status", [401, 403, 404])
def test_where_the_snapshot_is_closed_the_metrics_tell_what_they_know(status: int) -> None:
    closed = (status, {"error": {"message": "operators only"}})
    with service(live=closed, metrics=(200, metrics()), ready=(200, READY)) as (url, asked):
        result = run(url, "--key", "sk-x")
    assert result.exit_code == OK
    assert "1 over" in result.output
    assert "25.0%" in result.output
    assert "scope: operator" in result.output
    assert {key for _, key in asked} == {"Bearer sk-x"}


def test_a_real_services_snapshot() -> None:
    async def snapshot() -> tuple[dict[str, Any], Readiness]:
        stack = Stack(
            ScriptedEndpoint(CLOUD, words("Once upon a time", 0.2, 0.05)),
            ScriptedEndpoint(PHONE, words("Once upon a time", 0.3, 0.05)),
        )
        await stack.stream()
        readiness = stack.service.readiness()
        which = {"replica": "host:1", "replicas": 1}
        return which | stack.service.snapshot(readiness), Readiness(True, {}, tuple(readiness.endpoints))

    now = from_live(*run_virtual(snapshot()))
    assert [endpoint.name for endpoint in now.endpoints] == ["cloud", "phone"]
    assert (now.streams_over, now.streams_running, now.policy) == (1, 0, "cloud-only")
    assert now.endpoints[0].wins == 1


def test_metrics_as_they_are_rendered() -> None:
    now = from_metrics(metrics(), Readiness(True, {"phone": "loading"}, ("cloud",)))
    assert now.endpoints == [
        EndpointNow("cloud", True, cost_usd=0.25),
        EndpointNow("phone", False, "loading", wins=1, cost_usd=0.5),
    ]
    assert (now.streams_running, now.streams_over, now.spent_share, now.cost_usd) == (0, 1, 0.25, 0.75)
    assert now.streams is None


@pytest.mark.parametrize(
    ("pages", "code", "words"),
    [
        ({"live": (401, NO_KEY), "metrics": (401, NO_KEY), "ready": (200, READY)}, BAD_INPUT, "--key-env"),
        ({}, FAILED, "is no DiSCo-Serve"),
        ({"live": (200, {"strange": 1})}, FAILED, "something else"),
        ({"live": (200, "<html>")}, FAILED, "something else"),
        ({"live": (500, "")}, FAILED, "HTTP 500"),
    ],
)
def test_what_it_cannot_show(pages: dict[str, Any], code: int, words: str) -> None:
    with service(**pages) as (url, _):
        result = run(url)
    assert (result.exit_code, words in result.output) == (code, True), result.output


def test_nobody_listens() -> None:
    result = run("http://127.0.0.1:9")
    assert result.exit_code == UNREACHABLE
    assert "`disco up`" in result.output


@pytest.mark.usefixtures("listens_to_ctrl_c")
def test_it_looks_again_and_again_keeps_the_last_state_when_nobody_answers_and_leaves_by_ctrl_c() -> None:
    looks = iter([(200, LIVE), (200, LIVE | {"streams_over": 4711}), (500, "")])

    def live() -> tuple[int, Any]:
        page = next(looks, None)
        if page is None:
            os.kill(os.getpid(), signal.SIGINT)
        return page or (500, "")

    out = io.StringIO()
    with service(live=live, ready=(200, READY)) as (url, _):
        options = TopOptions(url=url, key=None, key_env=None, every=0.01, once=False, as_json=False)
        assert top(options, Console(file=out, width=120, height=40, force_terminal=True, color_system=None)) == OK
    first, *_, last = out.getvalue().split("2 under way")
    assert "this was the last state" not in first
    assert "15 over" in out.getvalue()
    assert "4711 over" in last
    assert "HTTP 500" in out.getvalue().rpartition("2 under way")[0]


@pytest.mark.usefixtures("listens_to_ctrl_c")
@pytest.mark.parametrize("option", ["--once", "--json"])
def test_one_look_that_is_broken_off_is_no_success(option: str) -> None:
    def live() -> tuple[int, Any]:
        os.kill(os.getpid(), signal.SIGINT)
        return 200, LIVE

    with service(live=live, ready=(200, READY)) as (url, _):
        assert run(url, option).exit_code == INTERRUPTED


def shown(now: Overview, most: int = 5, width: int = 110) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(render(now, most))
    return out.getvalue()


def test_no_more_streams_than_fit_and_how_many_are_left() -> None:
    streams = [StreamNow("m", 1.0, "decode", "cloud", n, 0.0, 0) for n in range(9)]
    page = shown(Overview([], streams, streams_running=9), most=4)
    assert page.count("decode") == 4
    assert "and 5 more" in page


@pytest.mark.parametrize(("breaker", "words"), [("open", "breaker open"), ("half_open", "breaker half open")])
def test_a_breaker_that_is_not_closed_is_told(breaker: str, words: str) -> None:
    assert words in shown(Overview([EndpointNow("cloud", True, breaker=breaker)]))


def test_an_endpoint_is_one_line_in_a_terminal_of_80_columns() -> None:
    figures = {"running": 12, "slots": 32, "queue_s": 1.25, "ttft_p50_s": 0.97, "ttft_p90_s": 1.37, "decode_rate": 19.3}
    endpoint = EndpointNow("cloud", True, kind="device", wins=4711, cost_usd=0.01234, **figures)
    (line,) = [line for line in shown(Overview([endpoint]), width=80).splitlines() if "cloud" in line]
    assert [word in line for word in ("device", "ready", "0.97/1.37 s", "0.01234")] == [True] * 4


def test_names_are_no_escapes() -> None:
    page = shown(Overview([EndpointNow("a\x1b[2Jb", False, "c\x1b[0m")], []))
    assert "\x1b" not in page


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (Overview([], budget=0.4, spent_share=1.0, constrained="device"), "40.0% is allowed; what is too much, later"),
        (
            Overview([], budget=0.4, spent_share=0.1, policy="joint", constrained="cloud"),
            "the cloud has processed 10.0% of all tokens",
        ),
        (Overview([], spent_share=0.1), "the constrained side has processed 10.0% of all prompt tokens so far\n"),
    ],
)
def test_the_budget_in_words(now: Overview, words: str) -> None:
    assert words in re.sub(" +\n", "\n", shown(now, width=160))
