"""`disco simulate` and `disco traces` as a person calls them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from serve_app.cli import simulate as command
from serve_app.cli.exits import BAD_INPUT, FAILED, INTERRUPTED, OK, UNFIT
from serve_app.cli.main import app
from serve_app.core.cost import Regime
from serve_app.extras import installing
from serve_app.sim import agreement, plots
from serve_app.sim.policies import CONTENDERS, DEFAULT
from serve_app.sim.shipped import PAPER_DEVICES
from serve_app.sim.study import ORACLE

QUICK = ["simulate", "--requests", "2000", "--budget", "0.3"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80", "TERM": "dumb"})


def refusal(*arguments: str) -> str:
    """What is said on stderr, which must be one line."""
    result = run(*arguments)
    assert result.exit_code == BAD_INPUT, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    (line,) = result.stderr.splitlines()
    return line


def log(folder: Path, text: str) -> str:
    path = folder / "log.csv"
    path.write_text(text)
    return str(path)


def test_it_runs_without_any_download_and_fits_eighty_columns() -> None:
    result = run("simulate", "--requests", "3000")
    assert result.exit_code == OK, result.output
    for name in (*CONTENDERS[Regime.DEVICE_CONSTRAINED], *CONTENDERS[Regime.SERVER_CONSTRAINED], ORACLE):
        assert name in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "…" not in result.stdout


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seconds\n1\n", "column ttft_s is missing"),
        ("ttft_s\n", "holds no rows"),
        ("ttft_s\n-1\n", "column ttft_s, line 2: the value is below 0"),
        ("ttft_s\nNaN\n", "column ttft_s, line 2: the value is not finite"),
        ("ttft_s\n1\n", "column ttft_s has one row"),
    ],
)
def test_a_bad_log_is_one_line_and_exit_code_2(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal(*QUICK, "--service", log(tmp_path, text))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--budget", "1.5"], "--budget: must be a share"),
        (["--budget", "-0.1"], "--budget: must be a share"),
        (["--regime", "neither"], "--regime: must be one of device-constrained, server-constrained"),
        (["--suite", "other"], "--suite: must be one of paper"),
        (["--gap", "0"], "--gap: must be a positive number"),
        (["--service", "nope"], "--service: no profile and no file is named nope"),
        (["--prompts", "nope"], "--prompts: no profile and no file is named nope"),
        (["--device", "nope"], "--device: no profile and no file is named nope"),
        (["--arrivals", "nope"], "--arrivals: no profile and no file is named nope"),
        (["--service", "nope.csv"], "nope.csv: cannot be read"),
        (["--suite", "paper", "--data", "nowhere"], "nowhere: is no folder"),
        (["--json", "nowhere/x.json"], "--json: nowhere/x.json cannot be written"),
    ],
)
def test_a_bad_option_is_one_line_and_exit_code_2(arguments: list[str], said: str) -> None:
    assert said in refusal(*QUICK, *arguments)


def test_a_prompt_of_no_tokens_is_refused(tmp_path: Path) -> None:
    bad = log(tmp_path, "prompt_tokens,output_tokens\n0,3\n")
    assert "column prompt_tokens, line 2: the value is below 1" in refusal(*QUICK, "--prompts", bad)


def document(folder: Path, *arguments: str) -> dict[str, Any]:
    file = folder / "out.json"
    result = run(*arguments, "--json", str(file))
    assert result.exit_code == OK, result.output
    loaded: dict[str, Any] = json.loads(file.read_text())
    return loaded


def test_ones_own_logs_are_halved_counted_and_queued(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    rows = [
        f"{t:.3f},{n},{2 * n},{30 * i},{'' if i % 10 else 'timeout'}"
        for i, (t, n) in enumerate(zip(rng.lognormal(-0.5, 0.5, 200), rng.integers(5, 60, 200), strict=True))
    ]
    own = log(tmp_path, "\n".join(["ttft_s,prompt_tokens,output_tokens,arrival_s,error", *rows]))
    found = document(tmp_path, *QUICK, "--service", own, "--prompts", own, "--arrivals", own)
    assert found["dropped"] == 40
    assert {one["pattern"] for one in found["arrivals"]} == {own}
    by_policy = {(p["regime"], p["policy"]): p["summary"] for p in found["points"]}
    for regime in Regime:
        best, chance = by_policy[regime, DEFAULT[regime]], by_policy[regime, f"stoch-{regime[0]}, concurrent"]
        assert by_policy[regime, ORACLE]["mean"] <= best["mean"] < chance["mean"]
    again = run(*QUICK, "--service", own, "--prompts", own)
    assert "40 failed requests" in again.stdout
    assert "random half" in again.stdout


@pytest.mark.parametrize("arrivals", ["poisson", "azure"])
def test_arrivals_come_from_profiles_too(tmp_path: Path, arrivals: str) -> None:
    busy = document(tmp_path, *QUICK, "--arrivals", arrivals, "--gap", "3")["arrivals"]
    idle = document(tmp_path, *QUICK, "--arrivals", arrivals, "--gap", "3000")["arrivals"]
    for often, seldom in zip(busy, idle, strict=True):
        assert often["queued"] > seldom["queued"]
        assert often["mean"] > seldom["mean"] * 0.99


def test_the_same_seed_gives_the_same_figures(tmp_path: Path) -> None:
    first, second = (document(tmp_path, *QUICK, "--seed", "4") for _ in range(2))
    assert first == second
    assert document(tmp_path, *QUICK, "--seed", "5") != first


def test_exact_says_that_the_production_code_agrees(tmp_path: Path) -> None:
    found = document(tmp_path, "simulate", "--requests", "60", "--budget", "0.5", "--exact")["exact"]
    assert [one["launches"] for one in found] == [0, 0, 0, 0]
    assert all(one["apart"] < 1e-9 for one in found)
    planned, closed = found[::2], found[1::2]
    assert sum(one["moved"] for one in planned) > 0
    assert [one["steps"] for one in closed] == [0, 0]


def test_the_closed_loop_spends_its_budget_from_a_cold_start(tmp_path: Path) -> None:
    found = document(tmp_path, "simulate", "--requests", "1500", "--budget", "0.3")["closed_loop"]
    assert [one["regime"] for one in found] == ["device-constrained", "server-constrained"]
    assert all(0.28 < one["spent"] <= 0.305 for one in found)
    assert all(one["steps"] > 50 for one in found)


def test_a_disagreement_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "TOLERANCE", 0.0)
    result = run("simulate", "--requests", "5", "--budget", "0.5", "--regime", "device-constrained", "--exact")
    assert result.exit_code == FAILED
    assert "NOT the same" in result.stdout


def test_plots_are_drawn_twice_each(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result = run(*QUICK, "--regime", "server-constrained", "--plots", str(tmp_path / "plots"))
    assert result.exit_code == OK, result.output
    files = sorted(path.name for path in (tmp_path / "plots").iterdir())
    for stem in ("ttft-cdf", "ttft-mean", "ttft-p99", "oracle-share", "cost", "delay-num"):
        for suffix in ("png", "svg"):
            assert f"{stem}-server-constrained.{suffix}" in files
    assert all(path.stat().st_size > 1000 for path in (tmp_path / "plots").iterdir())


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "file").write_text("")
    assert "--plots: " in refusal(*QUICK, "--plots", str(tmp_path / "file" / "plots"))


def test_what_cannot_be_written_is_told_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(command, "study")
    assert "--json: " in refusal(*QUICK, "--json", str(tmp_path / "none" / "x.json"))


def test_without_matplotlib_the_remedy_is_named_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "find_spec", lambda _: None)
    result = run(*QUICK, "--plots", "anywhere")
    assert result.exit_code == UNFIT
    assert installing("sim") in result.stderr
    assert not result.stdout


def test_the_suite_prints_every_line_with_target_and_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    every = command.cases
    monkeypatch.setattr(
        command,
        "cases",
        lambda *traces: [
            case
            for case in every(*traces)
            if case.overhead == 0.3 and case.device.name == PAPER_DEVICES[2] and case.service.name.startswith("gpt-4")
        ][:4],
    )
    suite = ["simulate", "--suite", "paper", "--splits", "2", "--plots", str(tmp_path)]
    found = document(tmp_path, *suite)
    assert {row["prompts"] for row in found["rows"]} == {"alpaca", "sharegpt"}
    assert {line["subject"] for line in found["verdicts"]} >= {"capture", "mean", "tail", "paper's ranges", "migration"}
    assert {one["pattern"] for one in found["arrivals"]} == {"poisson", "azure"}
    assert (tmp_path / "suite-mean-device-constrained.svg").is_file()


def test_ctrl_c_ends_it_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "study", interrupted)
    result = run(*QUICK)
    assert result.exit_code == INTERRUPTED
    assert not result.stderr


def test_traces_are_listed_by_the_command() -> None:
    result = run("traces")
    assert result.exit_code == OK
    assert "ray-project/llmperf-leaderboard" in result.stdout
