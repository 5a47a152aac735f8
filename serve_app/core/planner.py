"""The dispatch controller: observes, refits while serving, and plans each request."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from serve_app.core.cost import CostModel, Regime, mean_unit_cost, regime_of
from serve_app.core.dispatch import Alone, Policy, Threshold, WaitTime
from serve_app.core.latency import LatencyProfile
from serve_app.core.lengths import LengthDistribution, OutputLengths, exponential_quantiles
from serve_app.core.model import DispatchPlan, EndpointId, EndpointInfo, EndpointKind, Launch
from serve_app.core.observations import ENOUGH, EndpointObservations
from serve_app.core.threshold import fit_threshold
from serve_app.core.wait_time import fit_waits

#: Guesses before anything was seen, tokens.
PRIOR_PROMPT, PRIOR_OUTPUT = 60.0, 200.0
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
    """Pure but for its observations; the caller brings the clock (seconds) and the random number ``u``.

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
        self._seen = {info.id: EndpointObservations(priors[info.id], config.window) for info in infos}
        self._prompts: deque[int] = deque(maxlen=config.window)
        self._outputs: deque[int] = deque(maxlen=config.window)
        self._news = False
        self._fitted_at: float | None = None
        self._refit(0.0)
        self._fitted_at = None

    # --- observations -------------------------------------------------------------------------------------------

    def observe_request(self, prompt_tokens: int) -> None:
        self._prompts.append(max(1, prompt_tokens))
        self._news = True

    def observe_first_token(self, endpoint: EndpointId, prompt_tokens: int, ttft: float) -> None:
        """``ttft``: seconds from launch to first content token."""
        self._seen[endpoint].first_token(prompt_tokens, ttft)
        self._news = True

    def observe_decode(self, endpoint: EndpointId, tokens: int, seconds: float) -> None:
        """``tokens`` came in the ``seconds`` after the first one, unhindered by any pace."""
        self._seen[endpoint].decoded(tokens, seconds)
        self._news = True

    def observe_output(self, tokens: int) -> None:
        """An answer ended with so many tokens."""
        self._outputs.append(tokens)
        self._news = True

    def reconfigure(self, config: PlannerConfig, costs: CostModel) -> None:
        """Observations stay; the next plan refits."""
        self.constrained_kind = _dear_kind(config.regime, self._infos, costs)
        if config.window != self.config.window:
            self._prompts = deque(self._prompts, maxlen=config.window)
            self._outputs = deque(self._outputs, maxlen=config.window)
            for seen in self._seen.values():
                seen.resize(config.window)
        self.config, self.costs = config, costs
        self._fitted_at = None

    # --- what is believed ---------------------------------------------------------------------------------------

    def profile(self, endpoint: EndpointId) -> LatencyProfile:
        """As of the last fit."""
        return self._profiles[endpoint]

    def expected_remaining(self, accepted: int, max_tokens: int) -> float:
        """Tokens an answer of ``accepted`` tokens still has, on average."""
        return self._output_lengths.expected_remaining(accepted, max_tokens)

    # --- planning -----------------------------------------------------------------------------------------------

    def plan(
        self, prompt_tokens: int, eligible: Sequence[EndpointInfo], now: float, u: float, *, affordable: bool
    ) -> DispatchPlan:
        """``eligible``: endpoints the request may use, at least one. ``affordable``: the budget granted a reservation.

        Never raises: where an estimate fails, a static rule plans and ``fallbacks`` counts.
        """
        try:
            if self._fitted_at is None or (self._news and now - self._fitted_at >= self.config.refit_seconds):
                self._refit(now)
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
        budget = self.config.budget
        if self.constrained_kind is EndpointKind.DEVICE:
            if not affordable:
                return Alone(cloud.id, "disco-d", "cloud alone: the device's budget is spent")
            waits = fit_waits(self._server_ttfts[cloud.id], self._prompt_lengths, budget, self.config.tail_share)
            return WaitTime(cloud.id, device.id, waits, budget)
        if not affordable:
            return Alone(device.id, "disco-s", "device alone: the cloud's budget is spent")
        return Threshold(cloud.id, device.id, fit_threshold(self._prompt_lengths, budget), budget)

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
            return min(of_kind, key=lambda i: self._profiles[i.id].expected_ttft(prompt_tokens), default=None)

        return fastest(EndpointKind.CLOUD), fastest(EndpointKind.DEVICE)

    def _refit(self, now: float) -> None:
        # Noted first: should an estimate fail, the last good fit serves until the next one is due.
        self._fitted_at, self._news = now, False
        self._profiles = {name: seen.profile() for name, seen in self._seen.items()}
        self._prompt_lengths = LengthDistribution.of_samples(_completed(self._prompts, PRIOR_PROMPT))
        self._output_lengths = OutputLengths(_completed(self._outputs, PRIOR_OUTPUT))
        prompts = self._prompt_lengths.lengths.tolist()
        self._server_ttfts = {
            info.id: self._seen[info.id].ttft_distribution(prompts)
            for info in self._infos
            if info.kind is EndpointKind.CLOUD
        }


def _dear_kind(regime: Regime | None, infos: Sequence[EndpointInfo], costs: CostModel) -> EndpointKind | None:
    cloud = [costs.unit[info.id] for info in infos if info.kind is EndpointKind.CLOUD]
    device = [costs.unit[info.id] for info in infos if info.kind is EndpointKind.DEVICE]
    if not cloud or not device:
        return None
    return _CONSTRAINED[regime or regime_of(mean_unit_cost(device), mean_unit_cost(cloud))]


def _completed(seen: Collection[int], mean: float) -> list[int]:
    """Up to ENOUGH lengths, guesses stand in for those not seen yet."""
    return [*seen, *exponential_quantiles(mean, max(0, ENOUGH - len(seen)))]
