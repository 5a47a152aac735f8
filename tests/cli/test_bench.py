"""`disco bench` against scripted servers: what is sent, what is counted, what is shown, and how it ends."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from typer.testing import CliRunner, Result

from serve_app.bench.outcome import Outcome, Reader
from serve_app.bench.run import Limits, connect, drive
from serve_app.bench.workload import Wish, plan
from serve_app.cli.exits import BAD_INPUT, FAILED, INTERRUPTED, OK, UNREACHABLE
from serve_app.cli.main import app
from serve_app.client.server import server_at
from tests.cli.scripted_server import FOREIGN, Answer, chunk, end, event, refuse, scripted_server

REPORT = {"policy": "disco-d", "cost_usd": 0.25, "cost_notional": True, "winner": "phone", "migrations": []}
FAST = ("--gap", "0.01", "--requests", "20")


def disco(*texts: str, report: dict[str, Any] | None = REPORT) -> Answer:
    """As this service answers: events are numbered, and a header says who it is."""

    async def answer(request: web.Request) -> web.StreamResponse:
        headers = {"content-type": "text/event-stream", "x-disco-policy": "disco-d"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        for number, text in enumerate(texts, 1):
            await response.write(f"id: {number}\n".encode() + chunk(text, "phone"))
        await response.write(end(report))
        return response

    return answer


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", *arguments], env={"COLUMNS": "120", "TERM": "dumb"})


def figures(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json", "-")
    assert result.exit_code == OK, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_one_server() -> None:
    with scripted_server(disco("Once", " upon", " a", " time")) as scripted:
        (server,) = figures(scripted.url, *FAST)["servers"]
    assert server["codes"] == {"ok": 20}
    assert (server["sent"], server["planned"], server["tokens"]) == (20, 20, 80)
    assert (server["cost_usd"], server["cost_notional"], server["winners"]) == (5.0, True, {"phone": 20})
    assert server["ttft_s"]["count"] == server["qoe"]["count"] == 20
    assert server["tbt_s"]["count"] == 60
    assert server["late_s"]["min"] >= 0
    assert server["duration_s"]["min"] >= server["ttft_s"]["min"] > 0
    warm_up, *bodies = scripted.bodies
    assert warm_up["max_tokens"] == 1
    assert bodies[0]["disco"] == {"report": True}
    assert bodies[0]["stream_options"] == {"include_usage": True}
    assert len({body["messages"][0]["content"] for body in bodies}) == 20


def test_several_servers_get_the_same_requests_and_stand_side_by_side() -> None:
    with (
        scripted_server(disco("a", "b")) as ours,
        scripted_server(disco("a", report=None), models=FOREIGN) as other,
    ):
        result = run(ours.url, other.url, *FAST)
        names = [url.removeprefix("http://") for url in (ours.url, other.url)]
    assert result.exit_code == OK, result.output
    asked = [sorted(body["messages"][0]["content"] for body in server.bodies) for server in (ours, other)]
    assert asked[0] == asked[1]
    assert all("disco" not in body for body in other.bodies)
    head, *_ = (line for line in result.output.splitlines() if line.strip())
    assert head.split() == names
    assert "5 notional" in result.output


def test_models_and_keys_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", "sk-x")
    with scripted_server(disco("a")) as one, scripted_server(disco("a")) as two:
        arguments = (one.url, two.url, "--requests", "1", "--model", "other", "--key-env", "THE_KEY", "--key-env", "-")
        assert run(*arguments).exit_code == OK
        assert {body["model"] for body in (*one.bodies, *two.bodies)} == {"other"}
        assert (set(one.keys), set(two.keys)) == ({"Bearer sk-x"}, {None})
        assert "sk-x" not in run(*arguments).output


def test_failures_are_counted_by_code_and_the_first_of_each_is_told() -> None:
    left = [disco("a"), refuse(429, {"error": {"message": "full", "code": "overloaded"}}), disco("a")]

    async def answer(request: web.Request) -> web.StreamResponse:
        return await (left.pop(0) if len(left) > 1 else left[0])(request)

    with scripted_server(answer) as scripted:
        result = run(scripted.url, *FAST)
    assert result.exit_code == OK
    assert "19 of 20" in result.output
    assert "1 x overloaded: HTTP 429: full" in result.output


def test_the_exit_code_says_that_nothing_was_answered() -> None:
    with scripted_server(refuse(500, {"error": {"message": "broken"}})) as scripted:
        result = run(scripted.url, *FAST, "--no-warm-up")
    assert result.exit_code == FAILED
    assert "20 x http_500" in result.output


def test_what_takes_too_long_counts_with_the_time_it_waited() -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    with scripted_server(answer) as scripted:
        result = run(
            scripted.url, "--requests", "3", "--gap", "0.01", "--timeout", "0.2", "--no-warm-up", "--json", "-"
        )
    (server,) = json.loads(result.stdout)["servers"]
    assert (result.exit_code, server["codes"]) == (FAILED, {"timeout": 3})
    assert server["ttft_s"]["min"] >= 0.2


def test_an_error_in_the_stream_and_an_end_without_one_are_failures() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(chunk("a"))
        if len(scripted.bodies) % 2:
            await response.write(event({"error": {"message": "it died", "code": "endpoint_fault"}}))
        return response

    with scripted_server(answer) as scripted:
        result = run(scripted.url, *FAST, "--no-warm-up")
    assert result.exit_code == FAILED
    assert "10 x endpoint_fault" in result.output
    assert "10 x connection_broken" in result.output


def test_a_bad_key_is_told_at_once_and_nothing_is_sent() -> None:
    with scripted_server(refuse(401, {"error": {"message": "wrong key"}})) as scripted:
        result = run(scripted.url, *FAST)
    assert result.exit_code == BAD_INPUT
    assert "--key-env" in result.output
    assert len(scripted.bodies) == 1


def test_the_newer_name_of_the_limit_is_found_by_the_warm_up() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if "max_tokens" in await request.json():
            return await refuse(400, {"error": {"message": "use max_completion_tokens"}})(request)
        return await disco("a")(request)

    with scripted_server(answer, models=FOREIGN) as scripted:
        assert figures(scripted.url, *FAST)["servers"][0]["codes"] == {"ok": 20}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("http://127.0.0.1:9",), UNREACHABLE, "no service answers"),
        (("nonsense",), BAD_INPUT, "URL: must be like"),
        (("http://127.0.0.1:9", "--gap", "-1"), BAD_INPUT, "--gap"),
        (("http://127.0.0.1:9", "--arrivals", "x"), BAD_INPUT, "--arrivals"),
        (("http://a", "http://b", "http://c", "--model", "x", "--model", "y"), BAD_INPUT, "--model: give it once"),
        (("http://127.0.0.1:9", "--key-env", "NO_SUCH_KEY"), BAD_INPUT, "NO_SUCH_KEY is not set"),
        (("http://127.0.0.1:9", "--lengths", "x"), BAD_INPUT, "--lengths: no profile and no file"),
        (("http://127.0.0.1:9", "--rows", "/no/such/folder/x.csv"), BAD_INPUT, "--rows: "),
        (("http://127.0.0.1:9", "--json", "/no/such/folder/x.json"), BAD_INPUT, "--json: "),
        (("http://127.0.0.1:9", "--plots", f"{__file__}/plots"), BAD_INPUT, "--plots: "),
    ],
)
def test_what_cannot_be_measured(arguments: tuple[str, ...], code: int, words: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, words in result.output) == (code, True), result.output


def test_files_of_figures_rows_and_plots(tmp_path: Path) -> None:
    with scripted_server(disco("a", "b")) as scripted:
        result = run(
            scripted.url, *FAST, "--json", str(tmp_path / "x.json"), "--rows", str(tmp_path / "x.csv"),
            "--plots", str(tmp_path / "plots"),
        )  # fmt: skip
    assert result.exit_code == OK, result.output
    assert json.loads((tmp_path / "x.json").read_text())["servers"][0]["codes"] == {"ok": 20}
    rows = list(csv.DictReader((tmp_path / "x.csv").read_text("utf-8").splitlines()))
    assert sorted(int(row["number"]) for row in rows) == list(range(20))
    assert {row["tokens"] for row in rows} == {"2"}
    assert {path.name for path in (tmp_path / "plots").glob("*.svg")} >= {"bench-ttft-cdf.svg", "bench-qoe-cdf.svg"}


@pytest.mark.usefixtures("listens_to_ctrl_c")
def test_ctrl_c_prints_what_was_measured() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if len(scripted.bodies) == 10:
            os.kill(os.getpid(), signal.SIGINT)
        if len(scripted.bodies) > 5:
            await asyncio.Event().wait()
        return await disco("a")(request)

    with scripted_server(answer) as scripted:
        result = run(scripted.url, *FAST)
    assert result.exit_code == INTERRUPTED
    assert "4 of 20" in result.output
    assert "broken off" in result.output


def test_what_is_sent_late_counts_from_when_it_was_due() -> None:
    """One at a time: while the first answer is held back, the others become due, and their times tell."""
    gate: list[asyncio.Event] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        if len(scripted.bodies) == 1:
            gate.append(asyncio.Event())
            asyncio.get_running_loop().call_later(0.3, gate[0].set)
            await gate[0].wait()
        return await disco("a")(request)

    class Notes:
        def __init__(self) -> None:
            self.found: list[Outcome] = []

        def sent(self, rank: int) -> None:
            pass

        def ended(self, rank: int, outcome: Outcome, elapsed: float) -> None:
            self.found.append(outcome)

    async def measure(url: str) -> list[Outcome]:
        notes = Notes()
        target = await connect(server_at(url), None, None, warm_up=False)
        try:
            await drive([target], plan(Wish(gap=0.001, requests=5)), Limits(inflight=1), Reader(), notes)
        finally:
            await target.close()
        return notes.found

    with scripted_server(answer) as scripted:
        first, *others = sorted(asyncio.run(measure(scripted.url)), key=lambda one: one.number)
    for one in others:
        # Sent after the first had ended, and its time to first token says so.
        assert one.late >= first.due + first.duration - one.due
        assert one.ttft is not None
        assert one.ttft > one.late
