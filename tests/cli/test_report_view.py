"""Reports of real streams, and the corners that those do not reach, as a person sees them."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from serve_app.cli.report_view import render
from serve_app.core.migration import Verdict
from tests.support.local_service import local_service, read_config
from tests.support.moving import ENDPOINTS, LIVE
from tests.support.virtual_loop import run_virtual


def real_report(args: dict[str, Any], live: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """As a client receives it."""

    async def main() -> dict[str, Any]:
        local = await local_service(args, live)
        _, outcome = await local.ask(20, 0, **fields)
        return outcome.report

    return json.loads(json.dumps(run_virtual(main())))


def shown(report: dict[str, Any], width: int = 120) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(render(report))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def fact(report: dict[str, Any], name: str) -> str:
    (line,) = [line for line in shown(report) if line.startswith(f"{name}  ")]
    return line.removeprefix(name).strip()


@pytest.fixture(scope="module")
def moved() -> dict[str, Any]:
    return real_report({"endpoints": ENDPOINTS}, LIVE)


@pytest.fixture(scope="module")
def stayed() -> dict[str, Any]:
    return real_report(*read_config("simulated.yaml"))


def test_a_real_migration(moved: dict[str, Any]) -> None:
    (migration,) = moved["migrations"]
    assert (migration["from"], migration["to"], migration["outcome"]) == ("phone", "cloud", "completed")
    token, gap = migration["at_token"], migration["gap_s"]
    assert fact(moved, "moved") == (f"phone → cloud at token {token} (migration, overlap): completed, gap {gap:.2f} s")
    assert fact(moved, "no move") == "to phone: its tokens are not cheaper"
    assert fact(moved, "answer tokens") == str(moved["completion_tokens"])
    assert shown(moved)[0] == f"policy  {moved['policy']}: {moved['reason']}"


def test_each_leg_has_its_line(moved: dict[str, Any]) -> None:
    lines = shown(moved)
    table = [line.split() for line in lines[lines.index("") + 1 : lines.index("", lines.index("") + 1)]]
    assert table[0] == ["endpoint", "imitates", "why", "start", "TTFT", "tokens", "USD", "outcome"]
    for leg, cells in zip(moved["legs"], table[2:], strict=True):
        assert cells[:2] == [leg["endpoint"], leg["reason"]]
        assert cells[2:4] == [f"{leg['start_s']:.2f}", "s"]
        assert str(leg["tokens"]) in cells
        assert f"{leg['cost_usd']:.3g}" in cells
        assert ("≥" in cells) is not leg["cost_exact"]
        assert cells[-1] == leg["outcome"]


def test_what_imitates_and_what_nobody_is_billed_is_called_so(stayed: dict[str, Any]) -> None:
    lines = shown(stayed)
    assert any("openai-gpt-4-1106-preview" in line and line.split()[0] == "cloud" for line in lines)
    (heading,) = [rank for rank, line in enumerate(lines) if line.startswith("endpoint")]
    assert lines[heading - 1].split() == ["notional"]
    assert fact(stayed, "cost").endswith(" USD, notional: nobody is billed")
    assert fact(stayed, "no move") == "to phone: its tokens are not cheaper"


def test_measurements(stayed: dict[str, Any]) -> None:
    assert fact(stayed, "TTFT") == f"{stayed['ttft_s']:.2f} s"
    assert fact(stayed, "TBT p99") == f"{stayed['tbt_p99_s']:.2f} s"
    assert fact(stayed, "delay_num") == str(stayed["delay_num"])
    assert fact(stayed, "QoE") == f"{stayed['qoe']:.3f}"
    counted, estimated = stayed["prompt_tokens"], stayed["prompt_tokens_estimated"]
    assert counted != estimated
    assert fact(stayed, "prompt tokens") == f"{counted} counted, {estimated} estimated before dispatch"


def test_a_cost_is_a_lower_bound_unless_it_is_exact(stayed: dict[str, Any]) -> None:
    for exact, words in ((True, "0.0125 USD"), (False, "≥ 0.0125 USD")):
        assert fact(stayed | {"cost_usd": 0.0125, "cost_exact": exact, "cost_notional": False}, "cost") == words


def test_without_a_reader_there_is_no_qoe() -> None:
    live = LIVE | {"reader": {"consumption_rate": None}}
    report = real_report({"endpoints": ENDPOINTS}, live, max_tokens=10)
    assert fact(report, "QoE") == "–"
    assert fact(report, "no move") == "to cloud: nobody said how fast the text is read"


@pytest.mark.parametrize("verdict", [verdict for verdict in Verdict if verdict is not Verdict.GO])
def test_every_verdict_has_its_words(verdict: Verdict) -> None:
    decision = {"target": "t", "verdict": verdict.value, "saving_usd": 1e-4, "overhead_usd": 2.5e-3, "lead": 3.0}
    words = fact({"verdicts": [decision | {"buffer_needed": 7.25}]}, "no move")
    assert words.startswith("to t: ")
    assert not words.removeprefix("to t: ").startswith(verdict.value)
    assert ("(0.0001 against 0.0025 USD)" in words) is (verdict is Verdict.SAVING)
    assert ("(3 tokens, 7.2 needed)" in words) is (verdict is Verdict.BUFFER)


def test_a_failed_leg_says_why_and_its_text_is_no_markup() -> None:
    leg = {"endpoint": "[red]c", "outcome": "failed", "error": "endpoint_timeout\x1b[2J"}
    lines = shown({"policy": "p", "reason": "[bold]r", "legs": [leg]})
    assert lines[0] == "policy  p: [bold]r"
    assert any(line.strip().startswith("[red]c") and line.endswith("failed (endpoint_timeout[2J)") for line in lines)


def test_eighty_columns_show_every_figure(stayed: dict[str, Any]) -> None:
    lines = shown(stayed, 80)
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)
    for leg in stayed["legs"]:
        (line,) = [line for line in lines if line.startswith(f"{leg['endpoint']} ")]
        assert f"{leg['cost_usd']:.3g}" in line
        assert line.endswith(leg["outcome"])


def test_a_report_of_another_version_is_shown_as_far_as_it_goes() -> None:
    assert shown({})[0] == "policy  –: –"
    assert fact({}, "TTFT") == "–"
