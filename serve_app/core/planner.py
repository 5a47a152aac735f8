"""The dispatch controller: observes, refits while serving, and plans each request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from serve_app.core.cost import CostModel, Regime, mean_unit_cost, regime_of
from serve_app.core.dispatch import Alone, Policy, Scheduled
from serve_app.core.estimates import Estimates
from serve_app.core.latency import LatencyProfile
from serve_app.core.model import DispatchPlan, EndpointId, EndpointInfo, EndpointKind, Launch
from serve_app.core.threshold import fit_threshold
from serve_app.core.wait_time import fit_waits

#: Observations after which a fit is old, whatever its age: those of some 25 requests.
MOST_NEWS = 100
_CONSTRAINED = {Regime.DEVICE_CONSTRAINED: EndpointKind.DEVICE, Regime.SERVER_CONSTRAINED: EndpointKind.CLOUD}
_SOLE = {"cloud-only": EndpointKind.CLOUD, "device-only": EndpointKind.DEVICE}


@dataclass(frozen=True, slots=True)
class PlannerConfig:
    """``regime`` None: by prices. budget is b, tail_share alpha; refit_seconds the longest age of a fit."""

    policy: Literal["disco", "cloud-only", "device-only"] = "disco"
    regime: Regime | None = None
    budget: float = 0.5
    tail_share: float = 0.05
    refit_seconds: float = 10.0
    window: int = 500


class Planner:
    """Pure but for its estimates; the caller brings the clock (seconds) and the random number ``u``.

    ``constrained_kind``: the side whose prompt tokens the budget limits, None with endpoints of one kind only. Prices
    alone decide it, so what a plan was allowed and what its request is charged for are the same side.
    ``fallbacks``: plans made without estimates, because an estimate failed.
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
        self._infos = tuple(infos)
        self.constrained_kind = _dear_kind(config.regime, self._infos, costs)
        self.estimates = Estimates({info.id: priors[info.id] for info in infos}, config.window)
        self._fitted_at: float | None = None
        self._fitted: dict[tuple[EndpointId, EndpointId], Policy] = {}

    def reconfigure(self, config: PlannerConfig, costs: CostModel) -> None:
        """Observations stay; the next plan refits."""
        self.constrained_kind = _dear_kind(config.regime, self._infos, costs)
        if config.window != self.config.window:
            self.estimates.resize(config.window)
        self.config, self.costs = config, costs
        self._fitted_at = None

    # --- what is believed ---------------------------------------------------------------------------------------

    def profile(self, endpoint: EndpointId) -> LatencyProfile:
        """As of the last fit."""
        return self.estimates.profiles[endpoint]

    def expected_remaining(self, accepted: int, max_tokens: int) -> float:
        """Tokens an answer of ``accepted`` tokens still has, on average."""
        return self.estimates.answers.expected_remaining(accepted, max_tokens)

    # --- planning -----------------------------------------------------------------------------------------------

    def plan(
        self, prompt_tokens: int, eligible: Sequence[EndpointInfo], now: float, u: float, *, affordable: bool
    ) -> DispatchPlan:
        """``eligible``: endpoints the request may use, at least one. ``affordable``: the budget granted a reservation.

        Never raises: where an estimate fails, a static rule plans and ``fallbacks`` counts.
        """
        try:
            self._refit_if_due(now)
            return self._policy(eligible, prompt_tokens, affordable=affordable).decide(prompt_tokens, u)
        except Exception:  # noqa: BLE001 - a failed estimate must not fail a request; the counter tells
            self.fallbacks += 1
            return self._static(eligible, affordable=affordable)

    def _policy(self, eligible: Sequence[EndpointInfo], prompt_tokens: int, *, affordable: bool) -> Policy:
        name = self.config.policy
        cloud, device = self._best(eligible, prompt_tokens)
        if cloud is None or device is None:
            only = cloud or device
            assert only is not None
            return Alone(only.id, name, f"only {only.kind} endpoints may serve this request")
        if name in _SOLE:
            sole = cloud if _SOLE[name] is EndpointKind.CLOUD else device
            return Alone(sole.id, name, "the policy says so")
        if not affordable and self.constrained_kind is EndpointKind.DEVICE:
            return Alone(cloud.id, "disco-d", "cloud alone: the device's budget is spent")
        if not affordable:
            return Alone(device.id, "disco-s", "device alone: the cloud's budget is spent")
        pair = cloud.id, device.id
        if pair not in self._fitted:
            self._fitted[pair] = self._fit(*pair)
        return self._fitted[pair]

    def _fit(self, cloud: EndpointId, device: EndpointId) -> Policy:
        prompts, budget = self.estimates.prompts, self.config.budget
        if self.constrained_kind is EndpointKind.DEVICE:
            waits = fit_waits(self.estimates.ttfts(cloud), prompts, budget, self.config.tail_share)
            return Scheduled(cloud, device, waits, "disco-d", "w(l)", budget)
        fit = fit_threshold(prompts, budget)
        return Scheduled(cloud, device, fit, "disco-s", f"l_th={fit.threshold:g}", budget)

    def _static(self, eligible: Sequence[EndpointInfo], *, affordable: bool) -> DispatchPlan:
        """Without estimates: the first endpoint of the unconstrained side; the other side's as well if affordable."""
        firsts: dict[EndpointKind, EndpointInfo] = {}
        for info in eligible:
            firsts.setdefault(info.kind, info)
        sole = _SOLE.get(self.config.policy)
        if sole in firsts:
            chosen = [firsts[sole]]
        else:
            chosen = sorted(firsts.values(), key=lambda info: info.kind is self.constrained_kind)
            chosen = chosen if affordable else chosen[:1]
        how = "race" if len(chosen) > 1 else f"{chosen[0].kind} alone"
        return DispatchPlan(tuple(Launch(info.id) for info in chosen), "static", f"{how}: an estimate failed")

    def _best(
        self, infos: Sequence[EndpointInfo], prompt_tokens: int
    ) -> tuple[EndpointInfo | None, EndpointInfo | None]:
        """The fastest cloud endpoint and the fastest device for this prompt, by expected TTFT."""

        def fastest(kind: EndpointKind) -> EndpointInfo | None:
            of_kind = [info for info in infos if info.kind is kind]
            return min(of_kind, key=lambda i: self.profile(i.id).expected_ttft(prompt_tokens), default=None)

        return fastest(EndpointKind.CLOUD), fastest(EndpointKind.DEVICE)

    def _refit_if_due(self, now: float) -> None:
        news, last = self.estimates.news, self._fitted_at
        if last is not None and (not news or (news < MOST_NEWS and now - last < self.config.refit_seconds)):
            return
        # Noted first: should an estimate fail, the last good fit serves until the next one is due.
        self._fitted_at = now
        self.estimates.refit()
        self._fitted.clear()


def _dear_kind(regime: Regime | None, infos: Sequence[EndpointInfo], costs: CostModel) -> EndpointKind | None:
    cloud = [costs.unit[info.id] for info in infos if info.kind is EndpointKind.CLOUD]
    device = [costs.unit[info.id] for info in infos if info.kind is EndpointKind.DEVICE]
    if not cloud or not device:
        return None
    return _CONSTRAINED[regime or regime_of(mean_unit_cost(device), mean_unit_cost(cloud))]
