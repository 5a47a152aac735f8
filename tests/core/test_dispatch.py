from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.core.dispatch import Alone, Policy, Threshold, WaitTime
from serve_app.core.latency import EmpiricalTtft
from serve_app.core.lengths import LengthDistribution
from serve_app.core.model import DispatchPlan, Launch
from serve_app.core.threshold import fit_threshold
from serve_app.core.wait_time import fit_waits

TTFT = EmpiricalTtft([0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.5, 3.0, 8.0])
LENGTHS = LengthDistribution([10, 20, 40, 80], [0.4, 0.3, 0.2, 0.1])


def hedging(budget: float) -> WaitTime:
    return WaitTime("cloud", "phone", fit_waits(TTFT, LENGTHS, budget, tail_share=0.1), budget)


def splitting(budget: float) -> Threshold:
    return Threshold("cloud", "phone", fit_threshold(LENGTHS, budget), budget)


def test_alone() -> None:
    plan = Alone("cloud", "cloud-only", "the policy says so").decide(62, 0.3)
    assert plan == DispatchPlan((Launch("cloud"),), "cloud-only", "the policy says so")


def test_a_hedge_starts_the_device_after_its_wait() -> None:
    assert hedging(0.3).decide(20, 0.5) == DispatchPlan(
        (Launch("cloud"), Launch("phone", 1.0)), "disco-d", "hedge after 1.00 s: w(l) for l=20 under b=0.3"
    )


def test_a_wait_of_zero_is_a_race() -> None:
    assert hedging(0.3).decide(10, 0.5) == DispatchPlan(
        (Launch("cloud"), Launch("phone")), "disco-d", "race: w(l) for l=10 under b=0.3"
    )


@pytest.mark.parametrize(
    ("prompt", "u", "races"), [(80, 0.9, True), (40, 0.1, True), (40, 0.9, False), (10, 0.0, False)]
)
def test_a_threshold_adds_the_server_to_long_prompts(prompt: int, u: float, races: bool) -> None:
    plan = splitting(0.4).decide(prompt, u)
    where = f"l={prompt}, l_th=80 under b=0.4"
    if races:
        assert plan == DispatchPlan((Launch("phone"), Launch("cloud")), "disco-s", f"race: {where}")
    else:
        assert plan == DispatchPlan((Launch("phone"),), "disco-s", f"device alone: {where}")


def test_an_infinite_threshold_reads_well() -> None:
    assert splitting(0.0).decide(80, 0.0).reason == "device alone: l=80, l_th=inf under b=0"


@settings(deadline=None)
@given(
    st.one_of(
        st.floats(0, 1).map(hedging), st.floats(0, 1).map(splitting), st.just(Alone("phone", "device-only", "why"))
    ),
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
