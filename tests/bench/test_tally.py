"""Outcomes and their summary: what counts as what, in bounded memory."""

from __future__ import annotations

import random

import pytest

from serve_app.bench.charts import charts_of
from serve_app.bench.outcome import OK, TIMEOUT, Outcome, Reader, Reading
from serve_app.bench.tally import Sample, Tally
from serve_app.client.answers import Chunk
from serve_app.core.stats import percentile

READER = Reader(rate=5.0, expected=1.0)


def read(*chunks: Chunk, numbered: bool = True, code: str = OK) -> Outcome:
    reading = Reading(numbered)
    for chunk in chunks:
        reading.take(chunk)
    return reading.outcome(3, due=10.0, sent=10.5, ended=20.0, reader=READER, code=code)


def test_times_count_from_when_the_request_was_due() -> None:
    outcome = read(Chunk(12.0, "a", shown=1), Chunk(12.5, "b", shown=2), Chunk(20.0, finish="stop"))
    assert (outcome.late, outcome.ttft, outcome.duration) == (0.5, 2.0, 10.0)
    assert outcome.tbts == [0.5]
    # The reader expected it after a second, and it came after two.
    assert outcome.qoe == pytest.approx(1 - 2.0 / (2.0 + 2.2 + 0.3), abs=0.2)


def test_the_first_token_is_the_first_text_and_tokens_are_those_the_server_numbers() -> None:
    outcome = read(
        Chunk(11.0, "", shown=0),
        Chunk(12.0, "", shown=2),
        Chunk(13.0, "ab", shown=5),
        Chunk(14.0, finish="stop", shown=5),
    )
    assert outcome.ttft == 3.0
    assert outcome.tokens == 5
    assert outcome.tbts == [0.0, 1.0, 0.0, 0.0]


def test_without_numbers_pieces_count_and_the_servers_own_count_is_believed() -> None:
    pieces = (Chunk(11.0, "a"), Chunk(12.0, "bc", shown=9), Chunk(12.0, finish="stop"))
    assert read(*pieces, numbered=False).tokens == 2
    outcome = read(*pieces, Chunk(12.0, completion_tokens=7), numbered=False)
    assert (outcome.tokens, outcome.tbts) == (7, [1.0])


def test_what_ends_without_a_reason_is_no_answer() -> None:
    assert read(Chunk(11.0, "a", shown=1)).code == "unfinished"
    assert read(code=TIMEOUT).code == TIMEOUT


def test_costs_moves_and_winners_are_the_reports() -> None:
    report = {
        "policy": "p", "cost_usd": 0.5, "cost_notional": True, "winner": "phone",
        "migrations": [{"outcome": "completed"}, {"outcome": "abandoned"}],
    }  # fmt: skip
    outcome = read(Chunk(11.0, "a", shown=1), Chunk(12.0, finish="stop", report=report))
    assert (outcome.cost, outcome.notional, outcome.moves, outcome.winner) == (0.5, True, 1, "phone")
    tally = Tally("s", "m", 3)
    tally.take(outcome, 5.0)
    tally.take(read(Chunk(11.0, "a", shown=1), Chunk(12.0, finish="stop")), 6.0)
    summary = tally.summary()
    assert (summary["cost_usd"], summary["cost_notional"], summary["priced_requests"]) == (0.5, True, 1)
    assert (summary["moves"], summary["winners"]) == (1, {"phone": 1})
    assert summary["tokens_per_second"] == pytest.approx(2 / 6.0)


def test_what_failed_is_counted_and_what_it_waited_is_not_left_out() -> None:
    tally = Tally("s", "m", 4)
    tally.take(Outcome(0, 0.0, 0.0, 9.0, TIMEOUT, "late"), 9.0)
    tally.take(Outcome(1, 0.0, 0.0, 8.0, TIMEOUT, "late again", ttft=2.0), 9.0)
    tally.take(Outcome(2, 0.0, 0.0, 0.1, "overloaded", "full"), 9.0)
    tally.take(Outcome(3, 0.0, 0.0, 3.0, OK, ttft=1.0), 9.0)
    assert sorted(tally.ttft.values) == [1.0, 2.0, 9.0]
    assert (tally.done, tally.failed) == (4, 3)
    assert tally.messages == {TIMEOUT: "late", "overloaded": "full"}
    assert tally.duration.values == [3.0]


def test_a_sample_is_bounded_and_represents_all_values() -> None:
    sample, dice = Sample("x", kept=2000), random.Random(7)
    values = [dice.random() for _ in range(40_000)]
    sample.extend(values)
    assert len(sample.values) == 2000
    assert (sample.count, sample.least, sample.most) == (40_000, min(values), max(values))
    for share in (0.1, 0.5, 0.9):
        assert sample.at(share) == pytest.approx(percentile(values, share), abs=0.04)
    summary = sample.summary()
    assert summary is not None
    assert (summary["count"], summary["kept"]) == (40_000, 2000)


def test_nothing_is_summed_up_of_nothing() -> None:
    tally = Tally("s", "m", 0)
    assert Sample("x").summary() is None
    assert tally.summary()["ttft_s"] is None
    assert charts_of([tally]) == []


def test_lines_of_the_plots_rise_to_one_and_tokens_that_came_together_are_in_them() -> None:
    tally = Tally("s", "m", 0)
    tally.tbt.extend([0.0] * 10 + [0.1, 0.2])
    (chart,) = charts_of([tally])
    (line,) = chart.series
    assert (line.x, line.y) == ((0.1, 0.2), (11 / 12, 1.0))
    tally.ttft.extend([float(n) for n in range(1, 5001)])
    line = charts_of([tally])[0].series[0]
    assert len(line.x) <= 501
    assert (line.x[-1], line.y[-1]) == (5000.0, 1.0)
    assert list(line.y) == sorted(line.y)
