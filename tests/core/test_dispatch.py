from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.core.baselines import DEVICE_ONLY, RACE, SERVER_ONLY, Fixed, stochastic
from serve_app.core.dispatch import Alone, Backed, Policy, Scheduled
from serve_app.core.latency import EmpiricalTtft, LinearTtft
from serve_app.core.lengths import LengthDistribution
from serve_app.core.model import DispatchPlan, EndpointKind, Launch
from serve_app.core.threshold import fit_threshold
from serve_app.core.wait_time import fit_waits

TTFT = EmpiricalTtft([0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.5, 3.0, 8.0])
LENGTHS = LengthDistribution([10, 20, 40, 80], [0.4, 0.3, 0.2, 0.1])


def scheduled(schedule: Fixed) -> Scheduled:
    return Scheduled("cloud", "phone", schedule, "fixed", "always", 0.25)


def hedging(budget: float) -> Scheduled:
    return Scheduled("cloud", "phone", fit_waits(TTFT, LENGTHS, budget, 0.1), "disco-d", "w(l)", budget)


def splitting(budget: float) -> Scheduled:
    return Scheduled("cloud", "phone", fit_threshold(LENGTHS, budget), "disco-s", "l_th", budget)


def gambling(budget: float) -> Scheduled:
    schedule = stochastic(EndpointKind.CLOUD, budget, concurrent=True)
    return Scheduled("cloud", "phone", schedule, "stoch-s", "chance", budget)


def test_a_backup_starts_when_the_first_is_late_for_such_a_prompt() -> None:
    policy: Policy = Backed("near", "far", LinearTtft(0.01, 0.5))
    for length, delay in ((10, 0.6), (100, 1.5)):
        plan = policy.decide(length, 0.3)
        assert [(launch.endpoint, launch.delay) for launch in plan.launches] == [("near", 0.0), ("far", delay)]
        assert plan.reason == f"hedge after {delay:.2f} s: near is seldom later"


def test_alone() -> None:
    plan = Alone("cloud", "cloud-only", "the policy says so").decide(62, 0.3)
    assert plan == DispatchPlan((Launch("cloud"),), "cloud-only", "the policy says so")


@pytest.mark.parametrize(
    ("schedule", "launches", "how"),
    [
        (SERVER_ONLY, (Launch("cloud"),), "cloud alone"),
        (DEVICE_ONLY, (Launch("phone"),), "device alone"),
        (RACE, (Launch("cloud"), Launch("phone")), "race"),
        (Fixed(0.0, 1.25), (Launch("cloud"), Launch("phone", 1.25)), "hedge after 1.25 s"),
        (Fixed(0.5, 0.0), (Launch("phone"), Launch("cloud", 0.5)), "hedge after 0.50 s"),
    ],
)
def test_delays_become_launches(schedule: Fixed, launches: tuple[Launch, ...], how: str) -> None:
    plan = scheduled(schedule).decide(20, 0.5)
    assert plan == DispatchPlan(launches, "fixed", f"{how}: always for l=20 under b=0.25")


def test_the_papers_waits() -> None:
    assert hedging(0.3).decide(20, 0.5).launches == (Launch("cloud"), Launch("phone", 1.0))
    assert hedging(0.3).decide(10, 0.5).launches == (Launch("cloud"), Launch("phone"))


def test_the_papers_threshold() -> None:
    drawn = [(80, 0.9), (40, 0.1), (40, 0.9), (10, 0.0)]
    assert [len(splitting(0.4).decide(prompt, u).launches) for prompt, u in drawn] == [2, 2, 1, 1]


@given(
    st.one_of(st.floats(0, 1).map(hedging), st.floats(0, 1).map(splitting), st.floats(0, 1).map(gambling)),
    st.integers(1, 5000),
    st.floats(0, 1, exclude_max=True),
)
def test_every_plan_is_sorted_by_delay_and_gives_a_reason(policy: Policy, prompt: int, u: float) -> None:
    plan = policy.decide(prompt, u)
    delays = [launch.delay for launch in plan.launches]
    assert delays == sorted(delays)
    assert delays[0] == 0
    assert len({launch.endpoint for launch in plan.launches}) == len(plan.launches)
    assert plan.reason
