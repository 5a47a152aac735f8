from __future__ import annotations

import numpy as np
import pytest

from serve_app.core.budget import TokenBudget
from serve_app.core.charge import Charge
from serve_app.core.cost import CostModel, UnitCost
from serve_app.core.latency import EmpiricalTtft, LatencyProfile, LinearTtft
from serve_app.core.model import EndpointKind, FinishReason
from serve_app.core.planner import Planner, PlannerConfig
from serve_app.core.policies import PolicyName
from tests.support.session_stage import CLOUD, PHONE, Stage

PRIORS = {
    "cloud": LatencyProfile(EmpiricalTtft(np.linspace(0.2, 2.2, 101)), 1e6, 50.0),
    "phone": LatencyProfile(LinearTtft(0.03, 0.2), 33.0, 14.0),
}
BOTH = frozenset(EndpointKind)
DEVICE_DEAR = CostModel({"cloud": UnitCost(1e-7, 4e-7), "phone": UnitCost(1e-6, 4e-6)})


def make(policy: PolicyName) -> tuple[Planner, TokenBudget]:
    return Planner(PlannerConfig(policy, budget=0.5), (CLOUD, PHONE), DEVICE_DEAR, PRIORS), TokenBudget(0.5)


def charge(policy: PolicyName, prompt_tokens: int = 10) -> tuple[Charge, TokenBudget]:
    planner, budget = make(policy)
    budget.admit(1000)
    made = Charge(budget, planner, prompt_tokens, BOTH)
    before = budget.balance
    assert made.afford(0.0)
    assert budget.balance == before - planner.reserved_tokens(prompt_tokens)
    return made, budget


def raced(winner: str) -> Stage:
    stage = Stage("cloud", "phone")
    stage.open()
    stage.accept("cloud", 12)
    stage.accept("phone", 12)
    stage.say(winner, "a", "b")
    return stage


def test_the_paper_s_budget_is_settled_with_the_first_token() -> None:
    made, budget = charge(PolicyName.AUTO)
    stage = raced("phone")
    made.settle(stage.session)
    assert budget.spent == 12
    stage.say("phone", "c", finish=FinishReason.STOP)
    made.settle(stage.session)
    made.close(stage.session)
    made.close(stage.session)
    assert (budget.spent, budget.admitted) == (12, 1012), "and the estimate of ten is corrected once"


def test_a_leg_that_never_got_a_slot_costs_nothing() -> None:
    made, budget = charge(PolicyName.AUTO)
    stage = Stage("cloud", "phone")
    stage.open()
    stage.accept("cloud", 10)
    stage.say("cloud", "a")
    made.settle(stage.session)
    assert budget.spent == 0


def test_a_joint_budget_waits_for_what_the_constrained_side_decodes() -> None:
    made, budget = charge(PolicyName.JOINT)
    stage = raced("phone")
    made.settle(stage.session)
    assert budget.spent == 0, "the phone decodes on"
    stage.say("phone", "c", "d", finish=FinishReason.STOP)
    made.close(stage.session)
    assert (budget.spent, budget.admitted) == (12 + 4, 1000 + 12 + 4)


def test_a_joint_budget_is_settled_at_once_where_the_other_side_won() -> None:
    made, budget = charge(PolicyName.JOINT)
    made.settle(raced("cloud").session)
    assert budget.spent == 12


@pytest.mark.parametrize("policy", [PolicyName.AUTO, PolicyName.JOINT])
def test_without_a_reservation_nothing_is_affordable_but_everything_is_counted(policy: PolicyName) -> None:
    planner, budget = make(policy)
    budget.set_share(0.0)
    made = Charge(budget, planner, 10, BOTH)
    assert not made.afford(0.0)
    stage = Stage("cloud")
    stage.open()
    stage.fail("cloud")
    stage.accept("phone", 12)
    stage.say("phone", "a", "b", finish=FinishReason.STOP)
    made.close(stage.session)
    decoded = 2 if planner.counts_decode else 0
    assert (budget.spent, budget.admitted) == (12 + decoded, 12 + decoded), "the phone had to step in"


@pytest.mark.parametrize("kind", EndpointKind)
def test_a_request_without_a_choice_stands_outside_the_budget(kind: EndpointKind) -> None:
    planner, budget = make(PolicyName.AUTO)
    budget.admit(1000)
    made = Charge(budget, planner, 10, {kind})
    stage = Stage("phone")
    stage.open()
    stage.accept("phone", 12)
    stage.say("phone", "a")
    made.settle(stage.session)
    made.close(stage.session)
    assert (budget.spent, budget.admitted, budget.balance) == (0, 1000, 500.0)


def test_a_request_that_nobody_took_earns_nothing() -> None:
    planner, budget = make(PolicyName.AUTO)
    made = Charge(budget, planner, 900, BOTH)
    stage = Stage("cloud", "phone")
    stage.open()
    stage.leave()
    made.close(stage.session)
    assert (budget.admitted, budget.balance) == (0, 0.0)


def test_a_watched_loser_is_charged_when_it_gets_its_slot_late() -> None:
    planner = Planner(PlannerConfig(PolicyName.DISCO_S, budget=0.5), (CLOUD, PHONE), DEVICE_DEAR, PRIORS)
    budget = TokenBudget(0.5)
    budget.admit(1000)
    made = Charge(budget, planner, 10, BOTH)
    assert made.afford(0.0)
    stage = Stage("cloud", "phone")
    stage.open()
    stage.accept("phone", 10)
    stage.say("phone", "a")
    made.settle(stage.session)
    assert budget.spent == 0
    stage.accept("cloud", 10)
    stage.say("cloud", "x")
    stage.say("phone", "b", finish=FinishReason.STOP)
    made.close(stage.session)
    assert budget.spent == 10
