from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from serve_app.core.legs import LegOutcome
from serve_app.core.report import build_report, leg_report, prefill_tokens
from tests.support.session_stage import BREAK, CLOUD, OVERLAP, PAUSED, PHONE, STOP, Stage, endpoint


def report(stage: Stage, **options: Any) -> dict[str, Any]:
    result = build_report(stage.session, stage.costs, **{"notional": False, **options})
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    return result


def by_endpoint(stage: Stage) -> dict[str, dict[str, Any]]:
    return {leg["endpoint"]: leg for leg in report(stage)["legs"]}


def answered() -> Stage:
    stage = Stage("cloud")
    stage.now = 100.0
    stage.open()
    stage.now = 100.5
    stage.accept("cloud", 12, queued=0.1)
    stage.now = 101.0
    stage.say("cloud", "secret ")
    stage.now = 101.25
    stage.say("cloud", "words", finish=STOP)
    return stage


def test_a_plain_answer() -> None:
    result = report(answered(), notional=True)
    legs = result.pop("legs")
    assert legs == [
        {
            "attempt": "r-0-cloud",
            "endpoint": "cloud",
            "kind": "cloud",
            "imitates": None,
            "reason": "dispatch",
            "start_s": 0.0,
            "ttft_s": 1.0,
            "queued_s": 0.1,
            "tokens": 2,
            "prefill_tokens": 12,
            "cost_usd": pytest.approx(12e-6 + 2e-3),
            "cost_exact": True,
            "outcome": "completed",
            "imitation_late_s": 0.0,
            "error": None,
            "cause": None,
        }
    ]
    # Off: what it decided was never asked, since the answer was over at once.
    assert [verdict["verdict"] for verdict in result.pop("verdicts")] == ["off"]
    assert result == {
        "policy": "test",
        "eligible": ["cloud", "phone"],
        "avoided": [],
        "reason": "test",
        "hedge": "none",
        "winner": "cloud",
        "migrations": [],
        "ttft_s": 1.0,
        "tbt_p99_s": 0.25,
        "delay_num": 0,
        "qoe": 1.0,
        "cost_usd": pytest.approx(12e-6 + 2e-3),
        "cost_exact": True,
        "cost_notional": True,
        "prompt_tokens_estimated": 10,
        "prompt_tokens": 12,
        "completion_tokens": 2,
    }


def test_it_never_contains_the_text() -> None:
    assert "secret" not in str(report(answered()))


def test_a_stream_without_a_token() -> None:
    stage = Stage("cloud", ("phone", 0.5), max_rescues=0)
    stage.open()
    stage.fail("cloud")
    stage.fail("phone")
    result = report(stage)
    assert {key: result[key] for key in ("winner", "ttft_s", "tbt_p99_s", "qoe", "hedge")} == {
        "winner": None,
        "ttft_s": None,
        "tbt_p99_s": None,
        "qoe": None,
        "hedge": "fired",
    }
    assert [(leg["error"], leg["outcome"], leg["cost_usd"], leg["ttft_s"]) for leg in result["legs"]] == [
        ("endpoint_unavailable", "failed", 0.0, None)
    ] * 2


def test_a_reader_of_unknown_speed_has_gaps_but_no_quality() -> None:
    stage = Stage("cloud", rate=None)
    stage.open()
    for second in (1.0, 1.5, 3.5):
        stage.now = second
        stage.say("cloud", "x")
    result = report(stage)
    assert (result["tbt_p99_s"], result["qoe"], result["delay_num"]) == (2.0, None, 0)


@pytest.mark.parametrize(
    ("launches", "word"),
    [
        (("cloud",), "none"),
        (("cloud", "phone"), "race"),
        (("cloud", ("phone", 0.5)), "not_needed"),
    ],
)
def test_what_became_of_the_hedge(launches: tuple[Any, ...], word: str) -> None:
    stage = Stage(*launches)
    stage.open()
    stage.say("cloud", "a")
    assert report(stage)["hedge"] == word


# --- migrations -----------------------------------------------------------------------------------------------------


def test_a_migration_and_what_it_delayed() -> None:
    stage = Stage("cloud", mode=BREAK)
    stage.open()
    stage.accept("cloud")
    stage.say("cloud", *"abcde")
    stage.now = 0.5
    stage.accept("phone")
    stage.now = 2.0
    stage.say("phone", "f")
    stage.say("phone", "g", "h", "i", "j", finish=STOP)
    result = report(stage)
    assert result["migrations"] == [
        {
            "from": "cloud",
            "to": "phone",
            "at_token": 5,
            "mode": "break",
            "reason": "migration",
            "outcome": "completed",
            "gap_s": 2.0,
            "accepted_after_s": 0.5,
        }
    ]
    # Due at 1.25, 1.5, 1.75 and 2.0 s: the first three came too late.
    assert result["delay_num"] == 3
    assert result["completion_tokens"] == 10
    assert [leg["tokens"] for leg in result["legs"]] == [5, 5]
    assert [leg["prefill_tokens"] for leg in result["legs"]] == [10, 15]


def test_an_abandoned_handoff_delays_nothing_and_is_told() -> None:
    stage = Stage("cloud", mode=OVERLAP)
    stage.open()
    stage.say("cloud", *"abcde")
    stage.say("cloud", "f")
    stage.wake(1.25)
    result = report(stage)
    assert (result["migrations"][0]["outcome"], result["delay_num"]) == ("abandoned", 0)
    assert result["verdicts"] == [
        {
            "target": "phone",
            "verdict": "buffer",
            "saving_usd": pytest.approx(94 * 999e-6),
            "overhead_usd": pytest.approx(20e-3 + 16e-9),
            "handover_s": 1.0,
            "buffer_needed": 4.0,
            "lead": 0,
        }
    ]


def test_a_resumed_pause_is_no_migration_that_delays() -> None:
    stage = Stage("cloud", rate=None)
    stage.open()
    stage.say("cloud", "a", finish=PAUSED)
    stage.now = 9.0
    stage.say("cloud", "b")
    result = report(stage)
    assert [record["reason"] for record in result["migrations"]] == ["resume"]
    assert result["delay_num"] == 0


# --- accounts -------------------------------------------------------------------------------------------------------


def test_a_loser_is_charged_for_what_it_did() -> None:
    stage = Stage("cloud", "phone")
    stage.open()
    stage.accept("cloud", 30)
    stage.accept("phone", 12)
    stage.say("phone", "a")
    stage.say("cloud", "x")
    legs = by_endpoint(stage)
    assert (legs["cloud"]["prefill_tokens"], legs["cloud"]["tokens"], legs["cloud"]["cost_exact"]) == (30, 1, False)
    assert legs["cloud"]["cost_usd"] == pytest.approx(30e-6 + 1e-3)
    assert report(stage)["cost_usd"] == pytest.approx(sum(leg["cost_usd"] for leg in legs.values()))
    assert report(stage)["cost_exact"] is False


def test_a_loser_that_never_got_a_slot_costs_nothing() -> None:
    stage = Stage("cloud", "phone")
    stage.open()
    stage.accept("cloud")
    stage.say("cloud", "a", finish=STOP)
    phone = by_endpoint(stage)["phone"]
    assert (phone["prefill_tokens"], phone["cost_usd"], phone["cost_exact"], phone["outcome"]) == (0, 0.0, True, "lost")


@pytest.mark.parametrize(
    ("end", "outcome", "exact"),
    [
        (lambda stage: stage.say("cloud", finish=STOP), "completed", True),
        (lambda stage: stage.say("cloud", finish=PAUSED), "paused", True),
        (lambda stage: stage.say("cloud", "END"), "completed", False),
        (lambda stage: stage.leave(), "cancelled", False),
        (lambda stage: stage.fail("cloud"), "failed", False),
        (lambda stage: stage.say("cloud", *"bcde"), "handed_over", False),
    ],
)
def test_what_was_cut_off_cost_at_least_what_it_reported(end: Any, outcome: str, exact: bool) -> None:
    stage = Stage("cloud", mode=BREAK, stops=("END",))
    stage.open()
    stage.accept("cloud")
    stage.say("cloud", "a")
    end(stage)
    leg = report(stage)["legs"][0]
    assert (leg["outcome"], leg["cost_exact"]) == (outcome, exact)


def test_a_parked_prefill_is_paid_in_full() -> None:
    stage = Stage("cloud", "phone", infos=(CLOUD, endpoint("phone", parks=True)), mode=OVERLAP)
    stage.open()
    stage.accept("phone", 12)
    stage.say("cloud", "a")
    phone = by_endpoint(stage)["phone"]
    assert (phone["outcome"], phone["prefill_tokens"], phone["cost_exact"]) == ("parked", 12, True)


def test_without_exact_counts_no_cost_is_exact() -> None:
    stage = Stage("cloud", infos=(replace(CLOUD, counts_tokens=False), PHONE))
    stage.open()
    stage.accept("cloud", None)
    stage.say("cloud", "a", finish=STOP)
    cloud = by_endpoint(stage)["cloud"]
    assert (cloud["prefill_tokens"], cloud["cost_exact"]) == (10, False)


def test_a_reused_prefill_is_not_charged_again() -> None:
    stage = Stage("cloud")
    stage.open()
    stage.accept("cloud")
    stage.say("cloud", *"abc")
    stage.fail("cloud")
    stage.accept("phone", 10, reused=10)
    assert prefill_tokens(stage.leg("phone"), stage.session) == 3
    stage.accept("phone", 10, reused=99)
    assert prefill_tokens(stage.leg("phone"), stage.session) == 0


def test_a_leg_reports_itself() -> None:
    stage = answered()
    leg = stage.leg("cloud")
    assert leg_report(leg, stage.session, stage.costs) == report(stage)["legs"][0]
    assert leg.outcome is LegOutcome.COMPLETED
