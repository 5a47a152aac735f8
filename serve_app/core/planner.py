"""The dispatch controller: observes, refits while serving, and plans each request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from serve_app.core.cost import CostModel, Regime, mean_unit_cost, regime_of
from serve_app.core.dispatch import Alone, Backed, Policy, Scheduled
from serve_app.core.estimates import Estimates
from serve_app.core.handover import NOTHING_MOVES, PROMPTS_ONLY, Decode, HandoverRule
from serve_app.core.latency import EmpiricalTtft, LatencyProfile, LinearTtft
from serve_app.core.model import DispatchPlan, EndpointId, EndpointInfo, EndpointKind, Launch
from serve_app.core.policies import MADE_FOR, Beliefs, PolicyName, fit

#: Observations after which a fit is old, whatever its age: those of some 15 requests.
MOST_NEWS: Final = 50
#: Share of the server's answers that count as late: then a device without budget for races may still be hedged with.
LATE: Final = 0.3
#: Share of an endpoint's answers that come in time. After that one of the same kind is asked as well, where there is no
#: endpoint of the other kind: it costs so few more prefills.
IN_TIME: Final = 0.95
#: Seconds of queue that make a fit of their own: a policy is fitted to what an endpoint takes, its queue included.
QUEUE_STEP: Final = 0.5
_CONSTRAINED: Final = {Regime.DEVICE_CONSTRAINED: EndpointKind.DEVICE, Regime.SERVER_CONSTRAINED: EndpointKind.CLOUD}
_SOLE: Final = {PolicyName.CLOUD_ONLY: EndpointKind.CLOUD, PolicyName.DEVICE_ONLY: EndpointKind.DEVICE}

#: Expected seconds that a newcomer queues at an endpoint.
Queue = Callable[[EndpointId], float]

#: Whether the budget lets the constrained side start after a delay in seconds; asked only where it is to start.
Afford = Callable[[float], bool]


class _Choice(NamedTuple):
    """free: serves alone where the budget of the constrained side is spent; None: no budget counts.

    late: seconds after which the constrained side is worth a debt, where its use was refused before.
    """

    policy: Policy
    free: EndpointInfo | None = None
    constrained: EndpointInfo | None = None
    late: float | None = None


def no_queue(_: EndpointId) -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class PlannerConfig:
    """``regime`` None: by prices. budget is b, tail_share alpha; refit_seconds the longest age of a fit.

    handover: how streams leave the constrained side, for the policy that budgets what is decoded there.
    """

    policy: PolicyName = PolicyName.AUTO
    regime: Regime | None = None
    budget: float = 0.5
    tail_share: float = 0.05
    refit_seconds: float = 10.0
    window: int = 500
    handover: HandoverRule = NOTHING_MOVES


class Planner:
    """Pure but for its estimates; the caller brings the clock (seconds) and the random number ``u``.

    ``constrained_kind``: the side whose prompt tokens the budget limits, None with endpoints of one kind only. Prices
    alone decide it, so what a plan was allowed and what its request is charged for are the same side.
    ``fallbacks``: plans made without estimates, because an estimate failed. ``fits``: how often estimates were renewed;
    ``fitted_at``: when last.
    """

    def __init__(
        self,
        config: PlannerConfig,
        infos: Sequence[EndpointInfo],
        costs: CostModel,
        priors: Mapping[EndpointId, LatencyProfile],
    ) -> None:
        self.config = config
        self.costs = costs
        self.fallbacks = 0
        self.fits = 0
        self._infos = tuple(infos)
        self.constrained_kind = _dear_kind(config, self._infos, costs)
        self.estimates = Estimates({info.id: priors[info.id] for info in infos}, config.window)
        self.fitted_at: float | None = None
        self._stale = False
        self._share = config.budget
        self._decode = PROMPTS_ONLY
        self._fitted: dict[tuple[EndpointId, int, EndpointId, int], Policy] = {}

    def reconfigure(self, config: PlannerConfig, costs: CostModel) -> None:
        """Observations stay; the next plan refits."""
        self.constrained_kind = _dear_kind(config, self._infos, costs)
        if config.window != self.config.window:
            self.estimates.resize(config.window)
        self.config, self.costs = config, costs
        self._stale = True

    def adopt(self, infos: Sequence[EndpointInfo], costs: CostModel) -> None:
        """Other endpoints, each with its cost and estimates, or other prices. The side that is dear may change."""
        self._infos, self.costs = tuple(infos), costs
        kind = _dear_kind(self.config, self._infos, costs)
        if kind is not self.constrained_kind:
            self.constrained_kind = kind
            self._fitted.clear()

    # --- what is believed ---------------------------------------------------------------------------------------

    def profile(self, endpoint: EndpointId) -> LatencyProfile:
        """As of the last fit."""
        return self.estimates.profiles[endpoint]

    @property
    def scheduled(self) -> list[Scheduled]:
        """The policies over both sides that requests were planned by since the last fit."""
        return [policy for policy in self._fitted.values() if isinstance(policy, Scheduled)]

    def expected_remaining(self, accepted: int, max_tokens: int) -> float:
        """Tokens an answer of ``accepted`` tokens still has, on average."""
        return self.estimates.answers.expected_remaining(accepted, max_tokens)

    # --- the budget's tokens --------------------------------------------------------------------------------------

    @property
    def counts_decode(self) -> bool:
        """The budget is a share of all tokens, not of prompt tokens alone."""
        return self.config.policy is PolicyName.JOINT

    def admitted_tokens(self, prompt_tokens: int) -> int:
        """What a request adds to the tokens of which the budget is a share."""
        return prompt_tokens + (round(self.estimates.answers.mean) if self.counts_decode else 0)

    def reserved_tokens(self, prompt_tokens: int) -> int:
        """What the constrained side is expected to process of a request that it takes part in."""
        return prompt_tokens + (round(self._decode.owned) if self.counts_decode else 0)

    # --- planning -------------------------------------------------------------------------------------------------

    def plan(
        self,
        prompt_tokens: int,
        eligible: Sequence[EndpointInfo],
        now: float,
        u: float,
        *,
        afford: Afford,
        share: float | None = None,
        queue: Queue = no_queue,
    ) -> DispatchPlan:
        """``eligible``: endpoints the request may use, at least one.

        ``share``: the b to fit to from the next refit on, where it is to differ from the configured one for a while.
        Never raises: where an estimate fails, a static rule plans and ``fallbacks`` counts.
        """
        try:
            self._refit_if_due(now, self.config.budget if share is None else share)
            choice = self._choose(eligible, prompt_tokens, queue)
            plan = choice.policy.decide(prompt_tokens, u)
        except Exception:  # noqa: BLE001 - a failed estimate must not fail a request; the counter tells
            self.fallbacks += 1
            return self._static(eligible, afford)
        return _afforded(plan, choice, afford)

    def _choose(self, eligible: Sequence[EndpointInfo], prompt_tokens: int, queue: Queue) -> _Choice:
        policy = self.config.policy
        cloud = self._fastest(EndpointKind.CLOUD, eligible, prompt_tokens, queue)
        device = self._fastest(EndpointKind.DEVICE, eligible, prompt_tokens, queue)
        if cloud is None or device is None:
            only = cloud or device
            assert only is not None
            return _Choice(self._one_kind(only, eligible, prompt_tokens, queue))
        if policy in _SOLE:
            sole = cloud if _SOLE[policy] is EndpointKind.CLOUD else device
            return _Choice(Alone(sole.id, policy.value, "the policy says so"))
        assert self.constrained_kind is not None
        key = cloud.id, _level(queue(cloud.id)), device.id, _level(queue(device.id))
        if key not in self._fitted:
            self._fitted[key] = self._fit(self.constrained_kind, *key)
        if self.constrained_kind is EndpointKind.CLOUD:
            return _Choice(self._fitted[key], device, cloud)
        return _Choice(self._fitted[key], cloud, device, self.estimates.ttfts(cloud.id).quantile(1 - LATE))

    def _one_kind(
        self, first: EndpointInfo, eligible: Sequence[EndpointInfo], prompt_tokens: int, queue: Queue
    ) -> Policy:
        """The fastest serves, backed by the second-fastest where that is free. No budget counts within one kind."""
        alone = Alone(first.id, "alone", f"only {first.kind} endpoints may serve this request")
        others = [info for info in eligible if info.id != first.id and not _level(queue(info.id))]
        second = self._fastest(first.kind, others, prompt_tokens, queue)
        if second is None or self.config.policy in _SOLE:
            return alone
        key = first.id, _level(queue(first.id)), second.id, 0
        if key not in self._fitted:
            late = self.estimates.seldom_later(first.id, IN_TIME)
            self._fitted[key] = alone if late is None else Backed(first.id, second.id, _behind(late, key[1]))
        return self._fitted[key]

    def _fit(
        self, constrained: EndpointKind, cloud: EndpointId, cloud_level: int, device: EndpointId, device_level: int
    ) -> Policy:
        """Each side takes its ``level`` steps of queue longer than its profile says.

        Behind a queue every prompt waits long, so that there the mean alone matters.
        """
        server = self.estimates.ttfts(cloud)
        if cloud_level:
            server = EmpiricalTtft(server.samples + cloud_level * QUEUE_STEP)
        profile = self.profile(device)
        line = profile.ttft if isinstance(profile.ttft, LinearTtft) else LinearTtft(0.0, profile.ttft.mean)
        line = _behind(line, device_level)
        if self.counts_decode:
            self._decode = self._expected_decode(constrained, cloud, device)
        prompts, config = self.estimates.prompts, self.config
        beliefs = Beliefs(
            server, line, prompts, self._share, config.tail_share, self._decode, tail_guard=not device_level
        )
        fitted = fit(config.policy, constrained, beliefs)
        return Scheduled(cloud, device, fitted.schedule, fitted.name, fitted.rule, config.budget)

    def _expected_decode(self, constrained: EndpointKind, cloud: EndpointId, device: EndpointId) -> Decode:
        source, target = (cloud, device) if constrained is EndpointKind.CLOUD else (device, cloud)
        answer = self.estimates.answers.mean
        owned = self.config.handover.decoded(
            self.profile(source), self.profile(target), self.estimates.prompts.mean, answer
        )
        return Decode(owned, answer)

    def _static(self, eligible: Sequence[EndpointInfo], afford: Afford) -> DispatchPlan:
        """Without estimates: the first endpoint of the unconstrained side; the other side's as well if affordable."""
        firsts: dict[EndpointKind, EndpointInfo] = {}
        for info in eligible:
            firsts.setdefault(info.kind, info)
        sole = _SOLE.get(self.config.policy)
        if sole in firsts:
            chosen = [firsts[sole]]
        else:
            chosen = sorted(firsts.values(), key=lambda info: info.kind is self.constrained_kind)
            chosen = chosen if len(chosen) > 1 and afford(0.0) else chosen[:1]
        how = "race" if len(chosen) > 1 else f"{chosen[0].kind} alone"
        return DispatchPlan(tuple(Launch(info.id) for info in chosen), "static", f"{how}: an estimate failed")

    def _fastest(
        self, kind: EndpointKind, infos: Sequence[EndpointInfo], prompt_tokens: int, queue: Queue
    ) -> EndpointInfo | None:
        """By expected queue and TTFT for this prompt."""
        of_kind = (info for info in infos if info.kind is kind)
        return min(of_kind, key=lambda i: queue(i.id) + self.profile(i.id).expected_ttft(prompt_tokens), default=None)

    def _refit_if_due(self, now: float, share: float) -> None:
        news, last = self.estimates.news, self.fitted_at
        if (
            last is not None
            and not self._stale
            and (not news or (news < MOST_NEWS and now - last < self.config.refit_seconds))
        ):
            return
        # Noted first: should an estimate fail, the last good fit serves until the next one is due.
        self.fitted_at, self._stale = now, False
        self.fits += 1
        self.estimates.refit()
        self._share = share
        self._fitted.clear()


def _afforded(plan: DispatchPlan, choice: _Choice, afford: Afford) -> DispatchPlan:
    """The plan, or what the budget leaves of it: a race that it refuses becomes a late hedge, if that is allowed."""
    free, constrained = choice.free, choice.constrained
    if free is None or constrained is None:
        return plan
    launch = next((launch for launch in plan.launches if launch.endpoint == constrained.id), None)
    if launch is None or afford(launch.delay):
        return plan
    spent = f"the {constrained.kind}'s budget is spent"
    if choice.late is not None and launch.delay == 0 and afford(choice.late):
        late = Launch(constrained.id, choice.late)
        return DispatchPlan((Launch(free.id), late), plan.policy, f"hedge after {choice.late:.2f} s: {spent}")
    return DispatchPlan((Launch(free.id),), plan.policy, f"{free.kind} alone: {spent}")


def _level(queue_seconds: float) -> int:
    return round(queue_seconds / QUEUE_STEP)


def _behind(line: LinearTtft, level: int) -> LinearTtft:
    """As seen by a request that queues for ``level`` steps."""
    return LinearTtft(line.slope, line.intercept + level * QUEUE_STEP)


def _dear_kind(config: PlannerConfig, infos: Sequence[EndpointInfo], costs: CostModel) -> EndpointKind | None:
    cloud = [costs.unit[info.id] for info in infos if info.kind is EndpointKind.CLOUD]
    device = [costs.unit[info.id] for info in infos if info.kind is EndpointKind.DEVICE]
    if not cloud or not device:
        return None
    if config.policy in MADE_FOR:
        return MADE_FOR[config.policy]
    return _CONSTRAINED[config.regime or regime_of(mean_unit_cost(device), mean_unit_cost(cloud))]
