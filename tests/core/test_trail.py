from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.core.report import build_report
from serve_app.core.trail import MOST_WAITING, SAMPLE_PERIOD, Trail
from tests.support.session_stage import CLOUD, LAPTOP, OVERLAP, PHONE, STOP, Stage


class Watched(Stage):
    """A stage whose session is looked at after every event, as the driver does."""

    def __init__(self, *launches: Any, **options: Any) -> None:
        super().__init__(*launches, **options)
        self.trail = Trail(self.session, options.get("infos", (CLOUD, PHONE)))
        self.told: list[Any] = []

    def tell(self, event: Any) -> Any:
        commands = super().tell(event)
        if self.trail.look(self.now):
            self.told += self.trail.take()
        assert not self.trail.waiting
        return commands

    def of(self, *kinds: str) -> list[Any]:
        return [event for event in self.told if event["type"] in kinds]


def moved() -> Watched:
    """The cloud wins a race, is dear, and hands over to the phone."""
    stage = Watched("cloud", ("phone", 3.0), mode=OVERLAP)
    stage.now = 50.0
    stage.open()
    stage.now = 50.5
    stage.accept("cloud", queued=0.25)
    stage.now = 51.0
    stage.say("cloud", "a ", "b ", "c ", "d ", "e ", "f ", "g ")
    stage.now = 51.25
    stage.accept("phone")
    stage.now = 51.5
    stage.say("phone", "h ")
    stage.now = 52.0
    stage.say("phone", "i", finish=STOP)
    return stage


def test_a_moving_answer_is_told_from_the_plan_to_its_end() -> None:
    stage = moved()
    assert json.loads(json.dumps(stage.told, allow_nan=False)) == stage.told
    plan, *_ = stage.told
    assert plan == {
        "type": "plan",
        "at_s": 0.0,
        "policy": "test",
        "reason": "test",
        "launches": [{"endpoint": "cloud", "delay_s": 0.0}, {"endpoint": "phone", "delay_s": 3.0}],
        "eligible": [
            {"endpoint": "cloud", "kind": "cloud", "imitates": None},
            {"endpoint": "phone", "kind": "device", "imitates": None},
        ],
        "avoided": [],
        "prompt_tokens_estimated": 10,
        "consumption_rate": 4.0,
        "max_tokens": 100,
    }
    assert stage.of("leg", "admitted", "first_token", "leg_over", "handoff", "handoff_over") == [
        {"type": "leg", "at_s": 0.0, "attempt": "r-0-cloud", "endpoint": "cloud", "reason": "dispatch",
         "from_token": 0},
        {"type": "admitted", "at_s": 0.5, "attempt": "r-0-cloud", "queued_s": 0.25},
        {"type": "leg", "at_s": 1.0, "attempt": "r-1-phone", "endpoint": "phone", "reason": "migration",
         "from_token": 7},
        {"type": "first_token", "at_s": 1.0, "attempt": "r-0-cloud", "won": True},
        {"type": "handoff", "at_s": 1.0, "source": "cloud", "target": "phone", "at_token": 7, "mode": "overlap",
         "reason": "migration"},
        {"type": "admitted", "at_s": 1.25, "attempt": "r-1-phone", "queued_s": 0.0},
        {"type": "leg_over", "at_s": 1.5, "attempt": "r-0-cloud", "outcome": "handed_over", "tokens": 7, "error": None},
        {"type": "first_token", "at_s": 1.5, "attempt": "r-1-phone", "won": False},
        {"type": "handoff_over", "at_s": 1.5, "target": "phone", "outcome": "completed", "gap_s": 0.5},
        {"type": "leg_over", "at_s": 2.0, "attempt": "r-1-phone", "outcome": "completed", "tokens": 2, "error": None},
    ]  # fmt: skip


def test_a_verdict_is_told_when_its_word_changes_with_the_lead_and_what_it_needs() -> None:
    stage = moved()
    assert [(event["target"], event["at_s"]) for event in stage.of("verdict")] == [("phone", 1.0), ("cloud", 1.5)]
    go, back = stage.of("verdict")
    assert (go["target"], go["verdict"], go["lead"], go["buffer_needed"]) == ("phone", "go", 6, 4.0)
    assert go["saving_usd"] > go["overhead_usd"] > 0
    assert (back["target"], back["verdict"], back["buffer_needed"]) == ("cloud", "not_cheaper", None)


def test_progress_is_sampled_not_told_token_by_token() -> None:
    stage = Watched("cloud", infos=(CLOUD,))
    stage.open()
    for _ in range(100):
        stage.now += SAMPLE_PERIOD / 10
        stage.say("cloud", "x ")
    samples = stage.of("progress")
    assert 10 <= len(samples) <= 12
    assert (samples[0]["accepted"], samples[0]["lead"]) == (1, 0)
    assert all(later["at_s"] - sooner["at_s"] >= SAMPLE_PERIOD for sooner, later in pairwise(samples))


def test_what_nobody_takes_does_not_pile_up() -> None:
    stage = Stage("cloud", infos=(CLOUD, PHONE), max_tokens=10_000)
    trail = Trail(stage.session, (CLOUD, PHONE))
    stage.open()
    for _ in range(2_000):
        stage.now += SAMPLE_PERIOD
        stage.say("cloud", "x ")
        assert trail.look(stage.now)
    assert MOST_WAITING <= len(trail.take()) <= MOST_WAITING + 3
    assert not trail.take()


def test_a_failure_is_told_by_its_code_and_a_cancelled_handoff_by_its_outcome() -> None:
    stage = Watched("cloud")
    stage.open()
    stage.accept("cloud")
    stage.say("cloud", "secret ")
    stage.fail("cloud")
    stage.leave()
    assert [(leg["outcome"], leg["error"]) for leg in stage.of("leg_over")] == [
        ("failed", "endpoint_unavailable"),
        ("cancelled", None),
    ]
    assert [(event["reason"], event["at_token"]) for event in stage.of("handoff")] == [("rescue", 1)]
    assert [(event["outcome"], event["gap_s"]) for event in stage.of("handoff_over")] == [("cancelled", None)]
    assert "secret" not in json.dumps(stage.told)


def test_an_event_that_changes_nothing_tells_nothing() -> None:
    stage = Watched("cloud", infos=(CLOUD,))
    stage.open()
    told = len(stage.told)
    assert not stage.trail.look(stage.now)
    assert len(stage.told) == told


@given(st.lists(st.sampled_from(["cloud", "phone", "laptop", "fail", "wait"]), max_size=30))
def test_whatever_happens_the_trail_says_what_the_report_says(steps: list[str]) -> None:
    stage = Watched("cloud", "phone", infos=(CLOUD, PHONE, LAPTOP), mode=OVERLAP)
    stage.open()
    for step in steps:
        stage.now += 0.125
        live = [leg.info.id for leg in stage.session.legs if leg.live]
        if step == "fail" and live:
            stage.fail(live[0])
        elif step in live:
            stage.say(step, "x ")
    stage.leave()
    report = build_report(stage.session, stage.costs, notional=False)
    legs, over = stage.of("leg"), {event["attempt"]: event for event in stage.of("leg_over")}
    assert [(leg["attempt"], leg["reason"]) for leg in legs] == [
        (leg["attempt"], leg["reason"]) for leg in report["legs"]
    ]
    for leg in report["legs"]:
        end = over[leg["attempt"]]
        assert (end["outcome"], end["tokens"], end["error"]) == (leg["outcome"], leg["tokens"], leg["error"])
    firsts = {event["attempt"]: event["at_s"] for event in stage.of("first_token")}
    assert firsts == {
        leg["attempt"]: pytest.approx(leg["start_s"] + leg["ttft_s"])
        for leg in report["legs"]
        if leg["ttft_s"] is not None
    }
    assert [event["outcome"] for event in stage.of("handoff_over")] == [m["outcome"] for m in report["migrations"]]
    assert len(stage.of("plan")) == 1
