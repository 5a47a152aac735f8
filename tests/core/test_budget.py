from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from serve_app.core.budget import Reservation, TokenBudget


def test_the_share_of_a_prompt_pays_for_a_share_of_the_prompts() -> None:
    budget = TokenBudget(0.5)
    granted = []
    for _ in range(6):
        budget.admit(100)
        granted.append(budget.reserve(100) is not None)
    assert granted == [True, False, True, False, True, False]


def test_nothing_is_granted_before_anything_was_credited_or_with_a_share_of_zero() -> None:
    assert TokenBudget(1.0).reserve(1) is None
    none = TokenBudget(0.0)
    none.admit(1000)
    assert none.reserve(1) is None


def test_a_share_of_one_always_grants() -> None:
    budget = TokenBudget(1.0)
    for tokens in (7, 4000, 1, 90):
        budget.admit(tokens)
        assert budget.reserve(tokens) is not None


def test_what_was_not_used_returns_once() -> None:
    budget = TokenBudget(0.5)
    budget.admit(100)
    reservation = budget.reserve(100)
    assert reservation is not None
    assert budget.balance == -50.0
    reservation.settle(0)
    reservation.settle(0)
    reservation.settle(100)
    assert (budget.balance, budget.spent) == (50.0, 0)


def test_use_beyond_the_reservation_is_paid_by_later_requests() -> None:
    budget = TokenBudget(0.5)
    budget.admit(100)
    reservation = budget.reserve(100)
    assert reservation is not None
    reservation.settle(160)
    assert (budget.balance, budget.spent) == (-110.0, 160)
    budget.admit(220)
    assert budget.reserve(1) is None
    budget.admit(2)
    assert budget.reserve(1) is not None


def test_what_was_used_without_a_reservation_is_owed_but_not_for_ever() -> None:
    budget = TokenBudget(0.5)
    budget.admit(100)
    budget.unreserved().settle(100)
    assert (budget.balance, budget.spent) == (-50.0, 100)
    for _ in range(1000):
        budget.unreserved().settle(100)
    deepest = -(budget.limit + budget.debt)
    assert (budget.balance, budget.spent) == (deepest, 100_100)
    budget.unreserved().settle(0)
    assert budget.balance == deepest, "an owed balance is not forgiven by a request that used nothing"


def test_unused_credit_piles_up_to_the_burst_only_but_a_prompt_has_its_own() -> None:
    budget = TokenBudget(0.5, burst=8.0)
    for _ in range(50):
        budget.admit(100)
    assert budget.balance == budget.limit + 50.0 == 850.0
    reservation = budget.reserve(100)
    assert reservation is not None
    reservation.settle(0)
    budget.admit(100)
    assert budget.balance == 850.0


def test_where_few_prompts_have_most_of_the_tokens_credit_waits_for_them() -> None:
    budget = TokenBudget(0.5, burst=8.0)
    for _ in range(40):
        for tokens in [10] * 19 + [2000]:
            budget.admit(tokens)
    assert budget.typical > 1500
    assert budget.balance > budget.capacity == 5 * budget.typical > 5 * budget.limit


def test_a_prompt_far_beyond_the_balance_is_refused_and_its_credit_kept_for_others() -> None:
    budget = TokenBudget(0.5)
    budget.admit(100)
    assert budget.debt == 200.0
    assert budget.reserve(251) is None
    assert budget.reserve(250) is not None
    assert budget.balance == -budget.debt


def test_the_more_was_earned_the_longer_a_prompt_may_be() -> None:
    budget = TokenBudget(0.5)
    for _ in range(2000):
        budget.admit(100)
    assert budget.debt == pytest.approx(0.005 * 100_000)


def test_hedges_go_deeper_than_races() -> None:
    budget = TokenBudget(0.5, burst=3.0)
    budget.admit(100)
    assert budget.reserve(100) is not None
    assert budget.reserve(100) is None
    granted = 0
    while budget.reserve(100, hedge=True) is not None:
        granted += 1
    assert granted == 3
    assert budget.balance == -350.0


def test_a_wrong_estimate_can_be_corrected_both_ways() -> None:
    budget = TokenBudget(0.5)
    budget.admit(100)
    budget.correct(-40)
    assert (budget.admitted, budget.balance) == (60, 30.0)


def test_the_share_that_was_spent() -> None:
    budget = TokenBudget(0.5)
    assert budget.spent_share == 0.0
    budget.admit(100)
    reservation = budget.reserve(100)
    assert reservation is not None
    assert budget.spent_share == 0.0
    reservation.settle(80)
    budget.admit(60)
    assert budget.spent_share == 0.5


def test_the_share_changes_for_what_is_admitted_from_then_on() -> None:
    budget = TokenBudget(0.5)
    budget.admit(100)
    budget.set_share(0.1)
    assert budget.share == 0.1
    budget.admit(100)
    assert budget.balance == pytest.approx(60.0)


@dataclass
class Held:
    reservation: Reservation
    tokens: int
    settled: list[int] = field(default_factory=list)


class Interleaving(RuleBasedStateMachine):
    """Requests are admitted, run at once and end in any order, while the share and past estimates change under them."""

    held: Bundle[Held] = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.share = 0.3
        self.budget = TokenBudget(self.share, burst=3.0)
        self.earned = 0.0
        self.taken_back = 0.0
        self.admitted = 0
        self.largest = 0
        self.running: list[Held] = []
        self.used = 0

    @rule(share=st.floats(0, 1))
    def change_share(self, share: float) -> None:
        self.share = share
        self.budget.set_share(share)

    @rule(target=held, tokens=st.integers(1, 400))
    def admit(self, tokens: int) -> object:
        self.budget.admit(tokens)
        self.earned += self.share * tokens
        self.admitted += tokens
        self.largest = max(self.largest, tokens)
        assert self.budget.balance <= self.budget.capacity + self.share * tokens + 1e-6
        reservation = self.budget.reserve(tokens)
        if reservation is None:
            return multiple()
        held = Held(reservation, tokens)
        self.running.append(held)
        return held

    @rule(part=st.floats(0, 0.5))
    def estimate_was_too_high(self, part: float) -> None:
        tokens = int(part * self.admitted)
        self.budget.correct(-tokens)
        self.admitted -= tokens
        self.taken_back += self.share * tokens

    @rule(held=consumes(held), part=st.floats(0, 1), again=st.booleans())
    def end(self, held: Held, part: float, again: bool) -> None:
        used = int(part * held.tokens)
        held.reservation.settle(used)
        if again:
            held.reservation.settle(held.tokens)
        self.running.remove(held)
        self.used += used

    @invariant()
    def spend_is_bounded_even_if_every_running_request_uses_all(self) -> None:
        at_worst = self.used + sum(held.tokens for held in self.running)
        assert at_worst <= self.earned + self.largest + 1e-6
        assert self.budget.spent == self.used
        assert self.budget.admitted == self.admitted

    @invariant()
    def no_token_is_forgotten(self) -> None:
        # Only the capacity loses credit, so what was taken back is owed until later requests have paid.
        reserved = sum(held.tokens for held in self.running)
        accounted = self.used + reserved + self.budget.balance
        assert accounted <= self.earned - self.taken_back + 1e-6


TestInterleaving = Interleaving.TestCase
TestInterleaving.settings = settings(deadline=None)


@settings(deadline=None)
@given(st.floats(0.01, 1), st.lists(st.integers(1, 500), min_size=1, max_size=300))
def test_one_at_a_time_the_share_is_met_from_both_sides(share: float, prompts: list[int]) -> None:
    budget = TokenBudget(share, burst=1e9)
    for tokens in prompts:
        budget.admit(tokens)
        reservation = budget.reserve(tokens)
        if reservation is not None:
            reservation.settle(tokens)
    total, largest = sum(prompts), max(prompts)
    assert share * total - 1e-6 <= budget.spent + max(0.0, budget.balance)
    assert budget.spent <= share * total + largest + 1e-6
    assert budget.admitted == total


def test_what_is_planned_with_brings_the_balance_to_one_reservation() -> None:
    budget = TokenBudget(0.5)
    assert budget.planned_share == 0.5
    budget.admit(100)
    assert budget.planned_share < 0.5
    budget.admit(100)
    assert budget.planned_share == pytest.approx(0.5), "100 tokens are there, and prompts take 100"
    budget.admit(100)
    assert budget.planned_share > 0.5


def test_what_is_planned_with_stays_a_share() -> None:
    high = TokenBudget(0.9)
    for _ in range(60):
        high.admit(100)
    assert high.planned_share == 1.0


def test_the_deepest_debt_leaves_half_of_the_share_to_plan_hedges_with() -> None:
    budget = TokenBudget(0.4)
    budget.admit(100)
    while budget.reserve(100, hedge=True) is not None:
        pass
    assert budget.balance < -10 * 100
    assert budget.planned_share == 0.2


def test_a_surplus_of_a_small_share_is_worked_off_more_gently_and_a_debt_a_little_so() -> None:
    def moved(share: float, reservations: float) -> float:
        """Of the share, by a balance that is so many typical reservations off, relative to the share."""
        budget = TokenBudget(share)
        budget.admit(100)
        budget.balance = budget.typical * (1 + reservations)
        return (budget.planned_share - share) / share

    assert moved(0.5, 0.0) == 0
    assert moved(0.1, 0.1) == pytest.approx(moved(1 / 3, 0.1))
    assert moved(1 / 3, -1.0) > 2 * moved(0.1, -1.0) > 4 * moved(1 / 3, -1.0)


@settings(deadline=None, max_examples=20)
@given(st.floats(0.05, 0.95), st.floats(0.5, 2.0), st.integers(0, 2**32 - 1))
def test_the_share_is_met_by_a_policy_that_spends_too_much_or_too_little(share: float, bias: float, seed: int) -> None:
    """The policy asks for ``bias`` times what it is allowed; a plain bucket would miss the share from below."""
    draw = random.Random(seed)
    budget = TokenBudget(share)
    for _ in range(4000):
        tokens = draw.randint(5, 150)
        budget.admit(tokens)
        if draw.random() < bias * budget.planned_share and (reservation := budget.reserve(tokens)) is not None:
            reservation.settle(tokens)
    assert budget.spent <= share * budget.admitted * 1.01 + 150
    if bias > 1.1 * share:  # so that planning with all tokens would be enough
        assert budget.spent >= share * budget.admitted * 0.97 - 150
