from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import serve_app.core.estimates as estimates_module
from serve_app.core.budget import TokenBudget
from serve_app.core.cost import CostModel, Regime, UnitCost
from serve_app.core.estimates import Observation, Seen
from serve_app.core.handover import HandoverRule
from serve_app.core.latency import EmpiricalTtft, LatencyProfile, LinearTtft
from serve_app.core.migration import MigrationMode
from serve_app.core.model import DispatchPlan, EndpointInfo, EndpointKind, Launch
from serve_app.core.planner import Planner, PlannerConfig
from serve_app.core.policies import PolicyName

CLOUD = EndpointInfo("cloud", EndpointKind.CLOUD, "m", 4096)
FAR = EndpointInfo("far", EndpointKind.CLOUD, "m", 4096)
PHONE = EndpointInfo("phone", EndpointKind.DEVICE, "m", 4096)
LAPTOP = EndpointInfo("laptop", EndpointKind.DEVICE, "m", 4096)
EVERYONE = (FAR, CLOUD, PHONE, LAPTOP)

PRIORS = {
    "cloud": LatencyProfile(EmpiricalTtft(np.linspace(0.2, 2.2, 101)), 1e6, 50.0),
    "far": LatencyProfile(EmpiricalTtft([5.0]), 1e6, 50.0),
    "phone": LatencyProfile(LinearTtft(0.03, 0.2), 33.0, 14.0),  # faster below 40 prompt tokens
    "laptop": LatencyProfile(LinearTtft(0.005, 1.2), 200.0, 20.0),
}
CHEAP, DEAR = UnitCost(1e-7, 4e-7), UnitCost(1e-6, 4e-6)
DEVICES_DEAR = CostModel({"cloud": CHEAP, "far": CHEAP, "phone": DEAR, "laptop": DEAR})
CLOUDS_DEAR = CostModel({"cloud": DEAR, "far": DEAR, "phone": CHEAP, "laptop": CHEAP})


def make(
    config: PlannerConfig = PlannerConfig(),  # noqa: B008 - frozen
    costs: CostModel = DEVICES_DEAR,
    infos: Sequence[EndpointInfo] = EVERYONE,
) -> Planner:
    return Planner(config, infos, costs, PRIORS)


def plan(
    planner: Planner,
    prompt_tokens: int = 62,
    eligible: Sequence[EndpointInfo] = EVERYONE,
    now: float = 0.0,
    u: float = 0.5,
    affordable: bool = True,
) -> DispatchPlan:
    return planner.plan(prompt_tokens, eligible, now, u, afford=lambda _: affordable)


def always(_: float) -> bool:
    return True


def names(chosen: DispatchPlan) -> list[str]:
    return [launch.endpoint for launch in chosen.launches]


# --- policies -------------------------------------------------------------------------------------------------------


def test_device_constrained_hedges_the_fastest_cloud_by_the_fastest_device() -> None:
    planner = make(PlannerConfig(PolicyName.DISCO_D, budget=0.1, tail_share=0.1))
    assert plan(planner) == DispatchPlan(
        (Launch("cloud"), Launch("laptop", 2.0)), "disco-d", "hedge after 2.00 s: w(l) for l=62 under b=0.1"
    )
    assert names(plan(planner, prompt_tokens=20)) == ["cloud", "phone"]
    assert planner.fallbacks == 0


def test_device_constrained_with_the_whole_budget_races() -> None:
    chosen = plan(make(PlannerConfig(PolicyName.DISCO_D, budget=1.0)))
    assert chosen.launches == (Launch("cloud"), Launch("laptop"))
    assert chosen.reason == "race: w(l) for l=62 under b=1"


def test_server_constrained_sends_short_prompts_to_the_device_and_races_long_ones() -> None:
    planner = make(PlannerConfig(PolicyName.DISCO_S, budget=0.5), CLOUDS_DEAR)
    short, long = plan(planner, prompt_tokens=5), plan(planner, prompt_tokens=3000)
    assert (short.policy, names(short)) == ("disco-s", ["phone"])
    assert (long.policy, names(long)) == ("disco-s", ["cloud", "laptop"])
    assert all(launch.delay == 0 for launch in long.launches)
    assert "under b=0.5" in short.reason


@pytest.mark.parametrize(
    ("costs", "tokens", "expected"),
    [
        (DEVICES_DEAR, 9, DispatchPlan((Launch("cloud"),), "disco-d*", "cloud alone: the device's budget is spent")),
        (CLOUDS_DEAR, 999, DispatchPlan((Launch("laptop"),), "disco-s*", "device alone: the cloud's budget is spent")),
    ],
)
def test_without_a_reservation_the_unconstrained_side_serves_alone(
    costs: CostModel, tokens: int, expected: DispatchPlan
) -> None:
    assert plan(make(costs=costs), prompt_tokens=tokens, affordable=False) == expected


def test_a_race_beyond_the_budget_becomes_a_late_hedge_where_debts_are_allowed() -> None:
    planner = make(PlannerConfig(budget=0.5))
    chosen = planner.plan(9, EVERYONE, 0.0, 0.5, afford=lambda delay: delay > 0)
    assert chosen.launches == (Launch("cloud"), Launch("phone", pytest.approx(1.6)))
    assert chosen.reason == "hedge after 1.60 s: the device's budget is spent"


def test_the_budget_is_asked_only_for_what_is_to_start() -> None:
    asked: list[float] = []

    def afford(delay: float) -> bool:
        asked.append(delay)
        return True

    planner = make(PlannerConfig(PolicyName.DISCO_D, budget=0.1, tail_share=0.1))
    chosen = planner.plan(62, EVERYONE, 0.0, 0.5, afford=afford)
    assert asked == [chosen.launches[1].delay] == [2.0]
    asked.clear()
    make(PlannerConfig(PolicyName.CLOUD_ONLY)).plan(62, EVERYONE, 0.0, 0.5, afford=afford)
    make(costs=CLOUDS_DEAR).plan(62, (PHONE, LAPTOP), 0.0, 0.5, afford=afford)
    make(PlannerConfig(budget=0.0)).plan(62, EVERYONE, 0.0, 0.5, afford=afford)
    assert asked == []


@pytest.mark.parametrize(("policy", "expected"), [("cloud-only", "cloud"), ("device-only", "laptop")])
@pytest.mark.parametrize("affordable", [True, False])
def test_a_policy_of_one_side(policy: str, expected: str, affordable: bool) -> None:
    planner = make(PlannerConfig(policy=PolicyName(policy)))
    assert plan(planner, affordable=affordable) == DispatchPlan((Launch(expected),), policy, "the policy says so")


@pytest.mark.parametrize(
    ("eligible", "expected", "kind"), [((FAR, CLOUD), "cloud", "cloud"), ((PHONE, LAPTOP), "laptop", "device")]
)
@pytest.mark.parametrize("policy", ["auto", "cloud-only", "device-only"])
def test_where_one_side_only_is_eligible_it_serves_whatever_the_policy(
    eligible: tuple[EndpointInfo, ...], expected: str, kind: str, policy: str
) -> None:
    planner = make(PlannerConfig(policy=PolicyName(policy)))
    if policy != "auto":
        answered(planner, expected, [1.0] * 40)
    for affordable in (True, False):
        chosen = plan(planner, eligible=eligible, affordable=affordable)
        assert chosen == DispatchPlan((Launch(expected),), "alone", f"only {kind} endpoints may serve this request")


# --- endpoints of one kind ------------------------------------------------------------------------------------------


def answered(planner: Planner, endpoint: str, ttfts: Sequence[float], prompt_tokens: int = 62) -> None:
    for ttft in ttfts:
        planner.estimates.observe(Observation(Seen.FIRST_TOKEN, prompt_tokens, ttft, endpoint))


def test_the_second_of_a_kind_backs_the_first_where_that_is_later_than_it_mostly_was() -> None:
    planner = make()
    answered(planner, "cloud", [rank / 100 for rank in range(1, 100)])
    chosen = plan(planner, eligible=(FAR, CLOUD))
    assert chosen == DispatchPlan(
        (Launch("cloud"), Launch("far", 0.95)), "backup", "hedge after 0.95 s: cloud is seldom later"
    )
    assert plan(planner, eligible=(FAR, CLOUD), affordable=False) == chosen, "no budget counts within one kind"
    assert names(plan(planner, eligible=(CLOUD,))) == ["cloud"]


def test_of_one_device_and_another_too_and_longer_prompts_are_late_later() -> None:
    planner = make()
    for length in (20, 60, 200):
        answered(planner, "laptop", [0.005 * length + 1.2 + rank / 100 for rank in range(10)], length)
    short, long = (plan(planner, length, (LAPTOP, PHONE)) for length in (62, 162))
    assert names(short) == names(long) == ["laptop", "phone"]
    assert long.launches[1].delay - short.launches[1].delay == pytest.approx(100 * 0.005, rel=0.01)
    assert 0.03 < short.launches[1].delay - (0.005 * 62 + 1.2) < 0.12


def test_a_queue_makes_the_first_late_later_and_the_second_no_help() -> None:
    planner = make()
    answered(planner, "cloud", [0.4] * 40)

    def queued(name: str, seconds: float) -> DispatchPlan:
        waits = {name: seconds}
        return planner.plan(62, (FAR, CLOUD), 0.0, 0.5, afford=always, queue=lambda asked: waits.get(asked, 0.0))

    assert queued("cloud", 1.0).launches[1].delay == pytest.approx(0.4 + 1.0)
    assert names(queued("far", 1.0)) == ["cloud"]


@pytest.mark.parametrize("seed", range(5))
def test_one_request_of_twenty_is_late(seed: int) -> None:
    rng = np.random.default_rng(seed)
    planner = make()
    answered(planner, "cloud", rng.lognormal(-1, 1, 400).tolist())
    (_, backup) = plan(planner, eligible=(FAR, CLOUD)).launches
    assert 0.02 < (rng.lognormal(-1, 1, 4000) > backup.delay).mean() < 0.08


# --- the constrained side -------------------------------------------------------------------------------------------


def test_prices_decide_which_side_is_constrained_unless_told() -> None:
    assert make().constrained_kind is EndpointKind.DEVICE
    assert make(costs=CLOUDS_DEAR).constrained_kind is EndpointKind.CLOUD
    told = PlannerConfig(regime=Regime.SERVER_CONSTRAINED)
    assert make(told).constrained_kind is EndpointKind.CLOUD
    assert plan(make(told)).policy == "disco-s*"
    assert plan(make(PlannerConfig(regime=Regime.DEVICE_CONSTRAINED), CLOUDS_DEAR)).policy == "disco-d*"


@pytest.mark.parametrize("infos", [(CLOUD, FAR), (PHONE,)])
def test_one_side_alone_is_not_constrained(infos: tuple[EndpointInfo, ...]) -> None:
    planner = make(infos=infos)
    assert planner.constrained_kind is None
    assert names(plan(planner, eligible=infos)) == [min(infos, key=lambda info: info.id).id]


def test_latency_does_not_move_the_constrained_side() -> None:
    costs = CostModel({"cloud": CHEAP, "far": UnitCost(9e-5, 9e-5), "phone": DEAR, "laptop": DEAR})
    planner = make(costs=costs)
    before = planner.constrained_kind
    for _ in range(60):
        planner.estimates.observe(Observation(Seen.FIRST_TOKEN, 60, 0.01, "far"))
    assert names(plan(planner, prompt_tokens=3000)) == ["far", "laptop"]
    assert planner.constrained_kind is before is EndpointKind.CLOUD


def test_the_side_that_is_dear_follows_prices_and_endpoints_and_what_was_fitted_for_the_other_is_gone() -> None:
    both = (CLOUD, PHONE)
    planner = make(infos=both)
    assert (planner.constrained_kind, names(plan(planner, eligible=both))[0]) == (EndpointKind.DEVICE, "cloud")
    planner.adopt(both, CLOUDS_DEAR)
    assert (planner.constrained_kind, names(plan(planner, eligible=both))[0]) == (EndpointKind.CLOUD, "phone")
    planner.adopt((CLOUD,), CLOUDS_DEAR)
    assert planner.constrained_kind is None
    assert names(plan(planner, eligible=(CLOUD,))) == ["cloud"]


def test_a_device_that_joins_takes_part_like_any_other() -> None:
    tablet = EndpointInfo("tablet", EndpointKind.DEVICE, "m", 4096)
    planner = make(PlannerConfig(PolicyName.DISCO_D, budget=1.0), infos=(CLOUD, PHONE))
    planner.estimates.add("tablet", LatencyProfile(LinearTtft(0.0, 0.01), 1e3, 50.0))
    planner.adopt((CLOUD, PHONE, tablet), CostModel({"cloud": CHEAP, "phone": DEAR, "tablet": DEAR}))
    assert names(plan(planner, eligible=(CLOUD, PHONE, tablet))) == ["cloud", "tablet"]
    assert planner.fallbacks == 0


def test_an_endpoint_without_a_price_is_refused_and_changes_nothing() -> None:
    with pytest.raises(KeyError):
        make(costs=CostModel({"cloud": CHEAP}))
    planner = make()
    with pytest.raises(KeyError):
        planner.reconfigure(PlannerConfig(policy=PolicyName.CLOUD_ONLY), CostModel({"cloud": CHEAP}))
    assert planner.config == PlannerConfig()
    assert planner.costs is DEVICES_DEAR


# --- learning -------------------------------------------------------------------------------------------------------


def drift(planner: Planner, seconds: float, count: int = 60) -> None:
    for _ in range(count):
        planner.estimates.observe(Observation(Seen.FIRST_TOKEN, 62, seconds, "cloud"))


def test_it_refits_when_there_is_news_and_the_fit_is_old() -> None:
    planner = make(PlannerConfig(PolicyName.DISCO_D, budget=0.1, tail_share=0.1, refit_seconds=10.0))
    assert plan(planner, now=100.0).launches[1].delay == 2.0
    drift(planner, 0.7, count=40)
    assert plan(planner, now=109.9).launches[1].delay == 2.0
    assert planner.profile("cloud").expected_ttft(62) == pytest.approx(1.2)
    assert plan(planner, now=110.0).launches[1].delay == 0.7
    assert planner.profile("cloud").expected_ttft(62) == pytest.approx(0.7)
    drift(planner, 1.1, count=60)
    assert plan(planner, now=110.1).launches[1].delay == 1.1, "so much news is not left to grow old"


def test_without_news_nothing_is_fitted_again() -> None:
    planner = make()
    plan(planner, now=0.0)
    profile = planner.profile("cloud")
    plan(planner, now=1000.0)
    assert planner.profile("cloud") is profile
    planner.estimates.observe(Observation(Seen.DECODED, 60, 2.0, "phone"))
    plan(planner, now=2000.0)
    assert planner.profile("cloud") is not profile


def test_it_goes_where_it_is_fast_now() -> None:
    planner = make()
    plan(planner)
    drift(planner, 9.0)
    for length in range(20, 600, 10):
        planner.estimates.observe(Observation(Seen.FIRST_TOKEN, length, 5.0 + 0.05 * length, "laptop"))
    assert names(plan(planner, now=60.0)) == ["far", "phone"]


def test_waits_follow_a_cloud_that_was_believed_to_be_a_line() -> None:
    priors = {**PRIORS, "cloud": LatencyProfile(LinearTtft(0.001, 0.1), 1000.0, 50.0)}
    planner = Planner(
        PlannerConfig(PolicyName.DISCO_D, budget=0.1, tail_share=0.1), (CLOUD, PHONE), DEVICES_DEAR, priors
    )
    both = (CLOUD, PHONE)
    assert plan(planner, eligible=both).launches[1].delay < 0.4
    for i in range(100):
        planner.estimates.observe(Observation(Seen.FIRST_TOKEN, 62, 4.0 if i % 5 == 0 else 0.2, "cloud"))
    assert plan(planner, eligible=both, now=60.0).launches[1].delay == 4.0


def test_the_threshold_follows_the_prompts() -> None:
    planner = make(PlannerConfig(PolicyName.DISCO_S, budget=0.5), CLOUDS_DEAR)
    assert names(plan(planner, prompt_tokens=400)) == ["cloud", "laptop"]
    for length in range(1000, 2000, 10):
        planner.estimates.observe(Observation(Seen.PROMPT, length))
    assert names(plan(planner, prompt_tokens=400, now=60.0)) == ["laptop"]
    assert names(plan(planner, prompt_tokens=1990, now=60.0)) == ["cloud", "laptop"]


def test_a_few_prompts_leave_room_for_the_guess() -> None:
    planner = make(PlannerConfig(budget=0.5), CLOUDS_DEAR)
    planner.estimates.observe(Observation(Seen.PROMPT, 0))
    assert names(plan(planner, prompt_tokens=2)) == ["phone"]
    assert planner.fallbacks == 0


def test_remaining_tokens_are_learnt_from_answers() -> None:
    planner = make()
    assert planner.expected_remaining(0, 10_000) == pytest.approx(200, rel=0.05)
    assert planner.expected_remaining(90, 100) == 10
    for _ in range(60):
        planner.estimates.observe(Observation(Seen.ANSWER, 50))
    plan(planner)
    assert planner.expected_remaining(20, 10_000) == 30


def test_decode_rates_are_learnt() -> None:
    planner = make()
    for _ in range(20):
        planner.estimates.observe(Observation(Seen.DECODED, 60, 2.0, "phone"))
    plan(planner)
    assert planner.profile("phone").decode_rate == 30.0


def test_reconfiguring_keeps_what_was_seen_and_takes_effect_at_once() -> None:
    planner = make(PlannerConfig(budget=0.1, tail_share=0.1))
    plan(planner, now=0.0)
    drift(planner, 0.7)
    planner.reconfigure(PlannerConfig(budget=0.05, tail_share=0.1), CLOUDS_DEAR)
    assert plan(planner, now=0.1).policy == "disco-s*"
    assert planner.profile("cloud").expected_ttft(62) == pytest.approx(0.7)
    assert planner.costs is CLOUDS_DEAR


def test_another_window_keeps_the_newest() -> None:
    planner = make(PlannerConfig(window=200))
    drift(planner, 9.0, count=100)
    drift(planner, 0.5, count=40)
    for length in (10,) * 100 + (70,) * 40:
        planner.estimates.observe(Observation(Seen.ANSWER, length))
        planner.estimates.observe(Observation(Seen.PROMPT, length))
    planner.reconfigure(PlannerConfig(window=40), DEVICES_DEAR)
    plan(planner)
    assert planner.profile("cloud").expected_ttft(62) == pytest.approx(0.5)
    assert planner.expected_remaining(0, 1000) == 70


# --- when an estimate fails -----------------------------------------------------------------------------------------


class Broken(Exception):
    pass


def broken(*_: object) -> None:
    raise Broken


@pytest.mark.parametrize(
    ("costs", "affordable", "expected"),
    [
        (DEVICES_DEAR, True, ["far", "phone"]),
        (DEVICES_DEAR, False, ["far"]),
        (CLOUDS_DEAR, True, ["phone", "far"]),
        (CLOUDS_DEAR, False, ["phone"]),
    ],
)
def test_a_static_plan_replaces_a_failed_estimate(
    monkeypatch: pytest.MonkeyPatch, costs: CostModel, affordable: bool, expected: list[str]
) -> None:
    planner = make(costs=costs)
    monkeypatch.setattr(Planner, "_choose", broken)
    chosen = plan(planner, affordable=affordable)
    assert names(chosen) == expected
    assert all(launch.delay == 0 for launch in chosen.launches)
    assert (chosen.policy, planner.fallbacks) == ("static", 1)
    kind = "cloud" if expected[0] == "far" else "device"
    assert chosen.reason == f"{'race' if affordable else f'{kind} alone'}: an estimate failed"


@pytest.mark.parametrize(
    ("policy", "eligible", "expected"),
    [
        ("cloud-only", EVERYONE, ["far"]),
        ("device-only", EVERYONE, ["phone"]),
        ("cloud-only", (LAPTOP, PHONE), ["laptop"]),
        ("auto", (LAPTOP, PHONE), ["laptop"]),
        ("auto", (CLOUD,), ["cloud"]),
    ],
)
@pytest.mark.parametrize("affordable", [True, False])
def test_a_static_plan_keeps_to_policy_and_eligibility(
    monkeypatch: pytest.MonkeyPatch,
    policy: str,
    eligible: tuple[EndpointInfo, ...],
    expected: list[str],
    affordable: bool,
) -> None:
    planner = make(PlannerConfig(policy=PolicyName(policy)))
    monkeypatch.setattr(Planner, "_choose", broken)
    assert names(plan(planner, eligible=eligible, affordable=affordable)) == expected


def test_after_a_failed_refit_the_last_fit_serves_until_the_next_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = make(PlannerConfig(refit_seconds=10.0))
    plan(planner, now=0.0)
    planner.estimates.observe(Observation(Seen.ANSWER, 50))
    with monkeypatch.context() as patch:
        patch.setattr(estimates_module, "OutputLengths", broken)
        assert plan(planner, now=20.0).policy == "static"
        assert plan(planner, now=21.0).policy == "disco-d*"
    assert planner.fallbacks == 1
    planner.estimates.observe(Observation(Seen.ANSWER, 50))
    assert plan(planner, now=30.0).policy == "disco-d*"
    assert planner.fallbacks == 1


# --- queues, shares and joint budgets ---------------------------------------------------------------------------------


def test_a_queue_counts_as_part_of_what_an_endpoint_takes() -> None:
    planner = make()
    assert names(plan(planner, prompt_tokens=20)) == ["cloud", "phone"]
    queues = {"phone": 2.0, "cloud": 9.0}
    chosen = planner.plan(20, EVERYONE, 0.0, 0.5, afford=always, queue=lambda name: queues.get(name, 0.0))
    assert names(chosen) == ["far", "laptop"]


def test_behind_a_server_s_queue_the_device_waits_as_much_longer() -> None:
    planner = make(PlannerConfig(PolicyName.DISCO_D, budget=0.05, tail_share=0.05))

    def wait(queued: float) -> float:
        chosen = planner.plan(
            20, (CLOUD, PHONE), 0.0, 0.5, afford=always, queue=lambda name: queued if name == "cloud" else 0.0
        )
        return chosen.launches[1].delay

    assert wait(5.0) == pytest.approx(wait(0.0) + 5.0)


def test_a_busy_device_is_raced_for_short_prompts_too() -> None:
    both = (CLOUD, PHONE)
    planner = make(PlannerConfig(budget=0.3), CLOUDS_DEAR)
    for length in [10] * 30 + [80] * 30:
        planner.estimates.observe(Observation(Seen.PROMPT, length))
    assert names(plan(planner, 10, both)) == ["phone"]

    def busy(name: str) -> float:
        return 30.0 if name == "phone" else 0.0

    chosen = planner.plan(10, both, 0.0, 0.5, afford=always, queue=busy)
    assert set(names(chosen)) == {"phone", "cloud"}, "a queue is worth most per token where tokens are few"


def test_the_share_to_plan_with_takes_effect_with_the_next_fit() -> None:
    def waits(now: float, share: float) -> float:
        chosen = planner.plan(62, EVERYONE, now, 0.5, afford=always, share=share)
        return chosen.launches[1].delay if len(chosen.launches) > 1 else 99.0

    planner = make(PlannerConfig(budget=0.3, refit_seconds=10.0))
    first = waits(0.0, 0.3)
    drift(planner, 1.0, count=1)
    assert waits(5.0, 0.02) == first
    assert waits(10.0, 0.02) > first


def test_a_joint_budget_counts_what_is_decoded() -> None:
    handover = HandoverRule(MigrationMode.BREAK, 4.8, 0.05)
    joint = make(PlannerConfig(PolicyName.JOINT, budget=0.1, handover=handover))
    assert joint.counts_decode
    chosen = plan(joint, prompt_tokens=20)
    assert (chosen.policy, names(chosen)) == ("joint", ["cloud", "phone"])
    assert "decode included" in chosen.reason
    assert joint.admitted_tokens(20) == pytest.approx(220, abs=5), "an answer is expected to have 200 tokens"
    assert 20 < joint.reserved_tokens(20) < 50, "but the device leaves it long before"
    prompts_only = make(PlannerConfig(budget=0.1))
    assert not prompts_only.counts_decode
    assert prompts_only.admitted_tokens(20) == prompts_only.reserved_tokens(20) == 20


@pytest.mark.parametrize("policy", list(PolicyName))
def test_every_policy_plans(policy: PolicyName) -> None:
    for costs in (DEVICES_DEAR, CLOUDS_DEAR):
        planner = make(PlannerConfig(policy), costs)
        chosen = plan(planner, u=0.1)
        assert planner.fallbacks == 0
        assert {info.kind for info in EVERYONE if info.id in names(chosen)} <= set(EndpointKind)
        if policy not in (PolicyName.AUTO, PolicyName.JOINT, PolicyName.PAPER):
            assert chosen.policy in (policy.value, policy.value.removesuffix("-exclusive"))


# --- over many requests ---------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    st.sampled_from([DEVICES_DEAR, CLOUDS_DEAR]),
    st.floats(0, 1),
    st.floats(0, 1),
    st.integers(0, 2**32 - 1),
)
def test_any_history_gives_a_plan_within_bounds(costs: CostModel, budget: float, tail_share: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    planner = make(PlannerConfig(budget=budget, tail_share=tail_share, window=50), costs)
    for step in range(60):
        prompt = int(rng.integers(1, 3000))
        eligible = [info for info in EVERYONE if rng.random() < 0.7] or [PHONE]
        affordable = bool(rng.random() < 0.5)
        chosen = plan(planner, prompt, eligible, now=5.0 * step, u=float(rng.random()), affordable=affordable)
        assert set(names(chosen)) <= {info.id for info in eligible}
        assert len(set(names(chosen))) == len(chosen.launches) <= 2
        assert chosen.launches[0].delay == 0
        assert 0 < len(chosen.reason) <= 80
        assert "\n" not in chosen.reason
        both = {info.kind for info in eligible} == set(EndpointKind)
        if both and not affordable:
            (alone,) = (info for info in EVERYONE if info.id in names(chosen))
            assert alone.kind is not planner.constrained_kind
        planner.estimates.observe(Observation(Seen.PROMPT, prompt))
        planner.estimates.observe(Observation(Seen.ANSWER, int(rng.integers(0, 500))))
        for name in names(chosen):
            planner.estimates.observe(Observation(Seen.FIRST_TOKEN, prompt, float(rng.exponential(1.0)), name))
            planner.estimates.observe(Observation(Seen.DECODED, int(rng.integers(0, 100)), float(rng.random()), name))
    assert planner.fallbacks == 0


@pytest.mark.parametrize("costs", [DEVICES_DEAR, CLOUDS_DEAR])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_the_realised_share_of_prompt_tokens_is_bounded(costs: CostModel, share: float) -> None:
    rng = np.random.default_rng(11)
    planner, budget = make(PlannerConfig(budget=share), costs, (CLOUD, PHONE)), TokenBudget(share)
    constrained = "phone" if planner.constrained_kind is EndpointKind.DEVICE else "cloud"
    phone = PRIORS["phone"]
    total = used = largest = 0
    for step in range(2000):
        prompt = 1 + int(rng.exponential(60))
        planner.estimates.observe(Observation(Seen.PROMPT, prompt))
        budget.admit(prompt)
        account = budget.unreserved()

        def afford(delay: float, prompt: int = prompt) -> bool:
            nonlocal account
            reservation = budget.reserve(prompt, hedge=delay > 0)
            account = reservation or account
            return reservation is not None

        u = float(rng.random())
        chosen = planner.plan(prompt, (CLOUD, PHONE), float(step), u, afford=afford, share=budget.planned_share)
        server = float(rng.exponential(0.5))
        ran = [launch for launch in chosen.launches if launch.endpoint == "cloud" or server > launch.delay]
        spent = prompt if constrained in [launch.endpoint for launch in ran] else 0
        account.settle(spent)
        for launch in ran:
            ttft = server if launch.endpoint == "cloud" else phone.expected_ttft(prompt)
            planner.estimates.observe(Observation(Seen.FIRST_TOKEN, prompt, ttft, launch.endpoint))
        total, used, largest = total + prompt, used + spent, max(largest, prompt)
    assert used <= share * total + largest
    assert used >= 0.95 * share * total
    assert planner.fallbacks == 0


def test_it_tells_by_which_schedules_it_planned_since_the_last_fit() -> None:
    planner = make(PlannerConfig(PolicyName.DISCO_D, budget=0.1, tail_share=0.1))
    assert planner.scheduled == []
    plan(planner)
    plan(planner, eligible=(CLOUD, FAR))
    (scheduled,) = planner.scheduled
    assert (scheduled.cloud, scheduled.device, scheduled.name) == ("cloud", "laptop", "disco-d")
    assert scheduled.schedule.start(62, 0.5) == (0.0, 2.0)
