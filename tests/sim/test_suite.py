"""The evaluation on small made-up traces: what its figures mean, not how good they are."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from serve_app.core.cost import Regime
from serve_app.core.schedule import NEVER
from serve_app.sim.ablation import MANNERS, PRICES, RATIOS, Saving, ablate
from serve_app.sim.joint import JointRow, play_joint
from serve_app.sim.judge import Reading
from serve_app.sim.policies import CONTENDERS, DEFAULT, DISCO_D, DISCO_D_STAR, DISCO_S, DISCO_S_STAR, baselines
from serve_app.sim.rows import Case, Figures, Row, play_case
from serve_app.sim.shipped import paper_device
from serve_app.sim.suite import cases, run
from serve_app.sim.traces import LengthTrace, ServiceTrace
from serve_app.sim.verdicts import Line, judge

RNG = np.random.default_rng(11)
SERVICE = ServiceTrace("made-up", RNG.lognormal(-0.5, 0.8, 60), 40.0, "seeded")
PROMPTS = LengthTrace("alpaca", RNG.integers(4, 80, 300), RNG.integers(20, 400, 300), "seeded")


def case(regime: Regime) -> Case:
    return Case(SERVICE, paper_device("xiaomi14-qwen1.5-0.5b", 0.3), 0.3, PROMPTS, regime)


@pytest.fixture(scope="module", params=list(Regime), ids=str)
def rows(request: pytest.FixtureRequest) -> list[Row]:
    return play_case(case(request.param), splits=3, budgets=(0.1, 0.5))


def test_a_row_holds_every_contender_and_the_bounds_bound_it(rows: list[Row]) -> None:
    assert [row.budget for row in rows] == [0.1, 0.5]
    for row in rows:
        assert set(row.figures) == set(CONTENDERS[row.regime])
        for figures in row.figures.values():
            assert figures.mean.size == 3
            assert (figures.oracle <= figures.mean + 1e-9).all()
            assert (figures.mean_of[Reading.CONCURRENT] <= figures.mean_of[Reading.EXCLUSIVE] + 1e-9).all()
            assert abs(figures.spent.mean() - row.budget) < 0.1


def test_the_same_splits_give_the_same_figures(rows: list[Row]) -> None:
    again = play_case(case(rows[0].regime), splits=3, budgets=(0.1,))
    for name, figures in again[0].figures.items():
        assert np.array_equal(figures.mean, rows[0].figures[name].mean)


def test_an_interval_is_asked_for_only_where_the_tail_is_worse(rows: list[Row]) -> None:
    for row in rows:
        for name, figures in row.figures.items():
            for reading in Reading:
                excess = figures.p99.mean() - figures.p99_of[reading].mean()
                asked = name == DEFAULT[row.regime] and excess > 0
                assert (reading in figures.p99_worse) == asked
                assert not asked or figures.p99_worse[reading] < excess + 0.3


def figures(mean: float, **changes: object) -> Figures:
    """A policy that has ``mean``, where chance has 1 s and the optimum .5 s."""
    two = np.ones(2)
    base = Figures(
        mean=mean * two,
        p99=2 * two,
        spent=0.3 * two,
        mean_of={Reading.CONCURRENT: two, Reading.EXCLUSIVE: 2 * two},
        p99_of=dict.fromkeys(Reading, 4 * two),
        optimum=0.5 * two,
        oracle=0.25 * two,
        least_p99=1 * two,
        p99_worse={},
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def test_capture_and_cuts_are_shares() -> None:
    some = figures(0.6)
    assert some.headroom == pytest.approx(0.5)
    assert some.capture(some.optimum) == pytest.approx(0.8)
    assert some.capture(some.oracle) == pytest.approx(0.4 / 0.75)
    assert some.mean_cut(Reading.EXCLUSIVE) == pytest.approx(0.7)
    assert some.p99_cut(Reading.CONCURRENT) == pytest.approx(0.5)
    assert some.largest_p99_cut(Reading.CONCURRENT) == pytest.approx(0.75)


def row(regime: Regime, slower: float = -1.0, **by_name: Figures) -> Row:
    default = dict.fromkeys(CONTENDERS[regime], figures(0.5))
    named = {DISCO_D_STAR: "star", DISCO_S_STAR: "star", DISCO_D: "paper", DISCO_S: "paper"}
    held = {name: by_name.get(named.get(name, ""), value) for name, value in default.items()}
    peers = {DISCO_S_STAR: slower} if regime is Regime.SERVER_CONSTRAINED else {}
    return Row("made-up", "phone", 0.7, "alpaca", regime, 0.3, 0.5, 0.9, held, peers)


def verdict(lines: list[Line], *words: str) -> Line:
    (found,) = [line for line in lines if all(word in f"{line.subject} {line.claim}" for word in words)]
    return found


def test_perfect_rows_meet_every_line_about_dispatch() -> None:
    lines = judge([row(regime) for regime in Regime for _ in range(3)], [], [])
    for line in lines:
        if line.subject.split()[0] in ("capture", "tail", "static") and "oracle" not in line.claim:
            assert line.met, line


def test_every_kind_of_miss_is_seen() -> None:
    poor = figures(0.9, p99=5 * np.ones(2), p99_worse={Reading.CONCURRENT: 0.3}, spent=0.5 * np.ones(2))
    lines = judge([row(regime, slower=0.1, star=poor) for regime in Regime], [], [])
    for words in (
        ("capture", f"{DISCO_D_STAR}: median"),
        ("capture", "lowest median of a trace (made-up)"),
        ("mean", f"behind {DISCO_D}"),
        ("mean", f"slower than {DISCO_S} beyond"),
        ("tail", f"{DISCO_D_STAR}: rows with a P99 worse"),
        ("tail", f"{DISCO_S_STAR}: rows with a P99 more than 5"),
        ("static spend", f"{DISCO_D_STAR}: bias"),
        ("static spend", f"{DISCO_S_STAR}: splits", "0.10"),
    ):
        found = [line for line in lines if all(word in f"{line.subject} {line.claim}" for word in words)]
        assert found, words
        assert not any(line.met for line in found), words


def test_rows_without_headroom_are_counted_and_left_out_of_capture() -> None:
    flat = figures(5.0, optimum=0.99 * np.ones(2))
    lines = judge([row(Regime.DEVICE_CONSTRAINED), row(Regime.DEVICE_CONSTRAINED, star=flat)], [], [])
    assert verdict(lines, "device-constrained: rows in which").figure == "1 of 2"
    assert [line.met for line in lines if line.claim == f"{DISCO_D_STAR}: median"] == [True]


def test_the_bound_of_p99_stands_beside_the_ranges(rows: list[Row]) -> None:
    regime = rows[0].regime
    lines = judge([replace(one, prompts="alpaca", overhead=0.0) for one in rows], [], [])
    for reading in Reading:
        bound = verdict(lines, f"{regime.value}: largest P99 cut against {reading.value}")
        policy = verdict(lines, f"{DEFAULT[regime]}: P99 TTFT cut against {reading.value}")
        assert bound.met is None
        assert float(policy.figure.split("%")[0]) <= float(bound.figure.split("%")[0]) + 0.5


def test_a_joint_row_that_cannot_be_faster_is_counted_and_left_out_of_the_median() -> None:
    fast = JointRow("made-up", "phone", 0.0, Regime.DEVICE_CONSTRAINED, 0.1, 0.6, 1.0, 0.1, 0.1, -1.0, floor=0.5)
    flat = replace(fast, joint=1.0, floor=0.99)
    lines = judge([], [fast, flat], [])
    assert verdict(lines, "device-constrained: median cut of").figure == "40.0% (1 rows with headroom; all 2: 20.0%)"
    assert verdict(lines, "device-constrained: that median").figure == "50.0%"


@pytest.mark.parametrize("regime", list(Regime))
def test_the_ablation_covers_all_prices_and_saves_more_the_dearer_the_source(regime: Regime) -> None:
    savings = ablate(case(regime), requests=300)
    combinations = {(s.budget, s.prices, s.ratio, s.manner) for s in savings}
    assert len(combinations) == len(savings) == 3 * len(PRICES) * len(RATIOS[regime]) * len(MANNERS[regime])
    by_ratio = [max(s.saved for s in savings if s.ratio == ratio) for ratio in RATIOS[regime]]
    assert by_ratio == sorted(by_ratio)
    assert by_ratio[-1] > 0.3
    for saving in savings:
        assert 0 <= saving.abandoned <= saving.moved <= 1
        assert saving.saved > -0.05


def saving(**changes: object) -> Saving:
    base = Saving(
        "made-up",
        "phone",
        0.3,
        "alpaca",
        Regime.DEVICE_CONSTRAINED,
        0.5,
        "command",
        10.0,
        "break",
        1.0,
        0.2,
        0.5,
        0,
        0,
        0.2,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def test_what_the_reader_notices_is_judged_on_the_worst_row_and_named() -> None:
    lines = judge([], [], [saving(), saving(delay_num=1.5), saving(service="slow", longest_gap=0.9)])
    assert verdict(lines, "migration", "10x as dear: break").met
    reader = verdict(lines, "break: worst row")
    assert not reader.met
    assert reader.figure == "1.50, 4.32/r_c (slow)"
    assert verdict(lines, "overlap: worst row").met


@pytest.mark.parametrize("regime", list(Regime))
def test_one_budget_that_counts_on_the_handover_buys_more_races(regime: Regime) -> None:
    rows = play_joint(case(regime), splits=3, budgets=(0.05, 0.3, 0.9))
    for one in rows:
        assert one.joint <= one.separate + 1e-3
        assert one.slower <= 0
        assert one.joint_tokens <= one.budget + 0.05
        assert one.separate_tokens <= one.budget + 0.1
    lines = judge([], [replace(rows[0], overhead=0.0, joint=0.5, separate=1.0), replace(rows[0], slower=0.1)], [])
    assert verdict(lines, f"joint {regime.value}: median cut").met
    assert not verdict(lines, f"joint {regime.value}: rows slower").met


@pytest.mark.parametrize("regime", list(Regime))
def test_baselines_spend_on_the_constrained_side(regime: Regime) -> None:
    prompts, u = np.array([10, 20]), np.array([0.1, 0.9])
    for name, fit in baselines(regime).items():
        delays = fit(None, 0.5).delays(prompts, u)  # type: ignore[arg-type]
        dear = delays.device if regime is Regime.DEVICE_CONSTRAINED else delays.server
        if "stoch" in name:
            assert dear.tolist() == [0.0, NEVER], name


def test_every_case_is_played_in_processes_of_its_own() -> None:
    chosen = [one for one in cases([SERVICE], [PROMPTS]) if one.overhead == 0.3][:2]
    done: list[int] = []
    results = run(chosen, 2, 2, done.append)
    assert done == [1, 2]
    assert {row.regime for row in results.rows} == set(Regime)
    assert {saving.regime for saving in results.savings} == set(Regime)
    assert set(DEFAULT) == set(Regime)


def test_an_interruption_gives_up_the_cases_that_wait() -> None:
    chosen = [case(Regime.DEVICE_CONSTRAINED)] * 200
    seen: list[int] = []

    def interrupt(done: int) -> None:
        seen.append(done)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(chosen, 1, 1, interrupt)
    assert seen == [1]


def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import os, sys\n"
        "from tests.sim.test_suite import case\n"
        "from serve_app.core.cost import Regime\n"
        "from serve_app.sim.suite import run\n"
        "def die(done):\n"
        "    import multiprocessing\n"
        "    print(*[child.pid for child in multiprocessing.active_children()], flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
        "if __name__ == '__main__':\n"
        "    run([case(Regime.DEVICE_CONSTRAINED)] * 500, 1, 2, die)\n"
    )
    root = Path(__file__).parents[2]
    dead = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    workers = [psutil.Process(int(pid)) for pid in dead.stdout.split() if psutil.pid_exists(int(pid))]
    assert dead.stdout.split(), dead.stderr
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert not alive
