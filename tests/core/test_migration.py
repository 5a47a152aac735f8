"""The paper's section 7, with its numbers."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from serve_app.core.cost import CostModel, UnitCost
from serve_app.core.latency import EmpiricalTtft, LatencyProfile, LinearTtft
from serve_app.core.migration import (
    MigrationDecision,
    MigrationMode,
    Mover,
    StreamState,
    Verdict,
    fits,
    handover_seconds,
)
from serve_app.core.model import ContinuesBy
from tests.support.session_stage import CLOUD, endpoint

BREAK, OVERLAP = MigrationMode.BREAK, MigrationMode.OVERLAP
PHONE = endpoint("phone", context=200)
DEVICE = LatencyProfile(LinearTtft(1 / 80, 1 / 20), prefill_rate=80.0, decode_rate=20.0)
STATE = StreamState(prompt_tokens=60, accepted=6, max_tokens=106, lead=99, rate=5.0, open_character=False)


def steady_lead(generated: int, source_rate: float, reader_rate: float) -> float:
    """Unread tokens after ``generated`` ones at a steady source: n (1 - r_c / r_g)."""
    return generated * max(0.0, 1.0 - reader_rate / source_rate)


def mover(
    mode: MigrationMode | None = BREAK,
    target: UnitCost = UnitCost(0.0, 0.0),  # noqa: B008 - frozen
    profile: LatencyProfile = DEVICE,
    remaining: float = 100.0,
    source: UnitCost = UnitCost(0.0, 1e-6),  # noqa: B008 - frozen
    network: float = 0.05,
    *,
    full: bool = False,
) -> Mover:
    costs = CostModel({"cloud": source, "phone": target})
    return Mover(mode, network, costs, lambda _: profile, lambda _n, _top: remaining, lambda _: full)


def first_trigger(prefill: float, decode: float, source_rate: float, reader_rate: float, network: float) -> int:
    profile = LatencyProfile(LinearTtft(1 / prefill, 1 / decode), prefill, decode)
    moves = mover(profile=profile, network=network)
    for n in range(1, 60):
        lead = steady_lead(n, source_rate, reader_rate)
        state = replace(STATE, accepted=n, lead=lead, rate=reader_rate)
        if moves.consider(CLOUD, PHONE, state).verdict is Verdict.GO:
            return n
    raise AssertionError("it never moved")


def test_the_paper_s_triggers() -> None:
    assert first_trigger(prefill=80, decode=20, source_rate=50, reader_rate=5, network=0.05) == 6
    assert first_trigger(prefill=2000, decode=50, source_rate=14, reader_rate=4.8, network=0.1) == 2


def test_t_m_and_the_buffer_at_the_trigger() -> None:
    at_six = mover().consider(CLOUD, PHONE, replace(STATE, lead=steady_lead(6, 50, 5)))
    assert (at_six.handover, at_six.buffer_needed, at_six.lead) == pytest.approx((0.925, 4.625, 5.4))
    at_five = mover().consider(CLOUD, PHONE, replace(STATE, accepted=5, lead=steady_lead(5, 50, 5)))
    assert (at_five.verdict, at_five.buffer_needed, at_five.lead) == (Verdict.BUFFER, pytest.approx(4.5625), 4.5)


def test_a_source_slower_than_its_reader_builds_no_lead() -> None:
    assert steady_lead(100, 4.0, 5.0) == 0.0
    assert steady_lead(100, 5.0, 5.0) == 0.0


@pytest.mark.parametrize(("remaining", "verdict"), [(28.8, Verdict.SAVING), (28.9, Verdict.GO)])
def test_the_paper_s_break_even_of_28_9_tokens(remaining: float, verdict: Verdict) -> None:
    moves = mover(target=UnitCost(0.14e-6, 0.28e-6), source=UnitCost(0.0, 0.60e-6), remaining=remaining)
    decision = moves.consider(CLOUD, PHONE, STATE)
    assert decision.verdict is verdict
    assert decision.overhead == pytest.approx(0.14e-6 * 66)
    assert decision.saving == pytest.approx(0.32e-6 * remaining)


def test_a_saving_that_only_pays_for_itself_is_none() -> None:
    moves = mover(target=UnitCost(1.0, 0.0), source=UnitCost(0.0, 1.0), remaining=66.0)
    assert moves.consider(CLOUD, PHONE, STATE).verdict is Verdict.SAVING


def test_overlap_pays_for_the_source_s_surplus() -> None:
    decision = mover(OVERLAP).consider(CLOUD, PHONE, STATE)
    assert decision.overhead == pytest.approx(1e-6 * 0.925 * 20)
    short = mover(OVERLAP, remaining=3.0).consider(CLOUD, PHONE, STATE)
    assert short.overhead == pytest.approx(3e-6), "no more surplus than the text is long"
    assert short.verdict is Verdict.SAVING


def test_a_prefill_parked_long_ago_saves_the_prompt_in_time_and_money() -> None:
    decision = mover(target=UnitCost(1e-9, 0.0)).consider(CLOUD, PHONE, STATE, parked=60.0)
    assert (decision.handover, decision.overhead) == pytest.approx((0.05 + 6 / 80 + 1 / 20, 6e-9))


def test_a_prefill_that_has_just_begun_saves_money_but_no_time() -> None:
    moves = mover(target=UnitCost(1e-9, 0.0))
    just, plain = moves.consider(CLOUD, PHONE, STATE, parked=0.0), moves.consider(CLOUD, PHONE, STATE)
    assert just.overhead == pytest.approx(6e-9)
    assert just.handover >= plain.handover == pytest.approx(0.925)


def test_a_prefill_under_way_needs_the_rest_of_its_time() -> None:
    moves = mover()
    begun = [moves.consider(CLOUD, PHONE, STATE, parked=seconds).handover for seconds in (0.0, 0.25, 0.5)]
    assert [earlier - later for earlier, later in pairwise(begun)] == pytest.approx([0.25, 0.25])


@pytest.mark.parametrize(("mode", "expected"), [(OVERLAP, 0.96), (BREAK, 1.05)])
def test_an_unpredictable_target_is_judged_by_its_bad_days(mode: MigrationMode, expected: float) -> None:
    profile = LatencyProfile(EmpiricalTtft([i / 100 for i in range(1, 101)]), 1000.0, 50.0)
    assert mover(mode, profile=profile).consider(CLOUD, PHONE, STATE).handover == pytest.approx(expected)


def test_a_linear_target_is_taken_at_its_word() -> None:
    assert handover_seconds(DEVICE, 66, 0.05, 0.5) == handover_seconds(DEVICE, 66, 0.05, 0.99) == pytest.approx(0.925)


# --- the verdicts, in their order -----------------------------------------------------------------------------------


def test_every_reason_to_stay() -> None:
    unable = endpoint("phone", continues=ContinuesBy.NO, context=10)
    assert mover(None).consider(CLOUD, unable, STATE) == MigrationDecision(Verdict.OFF, "phone")
    unknown = mover().consider(CLOUD, unable, replace(STATE, rate=None))
    assert unknown == MigrationDecision(Verdict.READER_UNKNOWN, "phone")
    assert mover().consider(CLOUD, unable, STATE).verdict is Verdict.CANNOT_CONTINUE
    assert mover().consider(CLOUD, endpoint("phone", context=165), STATE).verdict is Verdict.CONTEXT
    assert mover().consider(CLOUD, endpoint("phone", context=166), STATE).verdict is Verdict.GO
    assert mover(target=UnitCost(0.0, 1e-6)).consider(CLOUD, PHONE, STATE).verdict is Verdict.NOT_CHEAPER
    inside = replace(STATE, open_character=True, lead=0)
    assert mover(remaining=0.0).consider(CLOUD, PHONE, inside).verdict is Verdict.SAVING
    assert mover().consider(CLOUD, PHONE, inside).verdict is Verdict.OPEN_CHARACTER
    assert mover().consider(CLOUD, PHONE, replace(inside, open_character=False)).verdict is Verdict.BUFFER


def test_a_context_must_hold_prompt_and_answer() -> None:
    assert fits(endpoint("phone", context=166), STATE)
    assert not fits(endpoint("phone", context=165), STATE)


def test_a_target_without_a_free_slot_is_not_worth_the_uncertainty() -> None:
    assert mover().consider(CLOUD, PHONE, STATE).verdict is Verdict.GO
    assert mover(full=True).consider(CLOUD, PHONE, STATE).verdict is Verdict.BUSY
