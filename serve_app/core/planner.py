"""The dispatch controller: observes, refits while serving, and plans each request."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from serve_app.core.cost import CostModel, Regime, regime_of
from serve_app.core.dispatch import Alone, Policy, Threshold, WaitTime
from serve_app.core.latency import EmpiricalTtft, LatencyProfile
from serve_app.core.lengths import LengthDistribution, OutputLengths, exponential_quantiles
from serve_app.core.model import DispatchPlan, EndpointId, EndpointInfo, EndpointKind, Launch
from serve_app.core.observations import ENOUGH, EndpointObservations
from serve_app.core.threshold import fit_threshold
from serve_app.core.wait_time import fit_waits

#: Guesses before anything was seen, tokens.
PRIOR_PROMPT, PRIOR_OUTPUT = 60.0, 200.0
_CONSTRAINED = {Regime.DEVICE_CONSTRAINED: EndpointKind.DEVICE, Regime.SERVER_CONSTRAINED: EndpointKind.CLOUD}


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
    """Pure but for its observations; the caller brings the clock (seconds) and the random number ``u``."""

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

    @property
    def constrained_kind(self) -> EndpointKind | None:
        """The side whose prompt tokens the budget limits; None with endpoints of one kind only."""
        cloud, device = self._best(self._infos, 1)
        return None if cloud is None or device is None else _CONSTRAINED[self._regime(cloud.id, device.id)]

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
            return self._static(eligible)

    def _policy(self, eligible: Sequence[EndpointInfo], prompt_tokens: int, *, affordable: bool) -> Policy:
        name = self.config.policy
        cloud, device = self._best(eligible, prompt_tokens)
        if cloud is None or device is None:
            only = cloud or device
            assert only is not None
            return Alone(only.id, name, f"only {only.kind} endpoints may serve this request")
        if name == "cloud-only":
            return Alone(cloud.id, name, "the policy says so")
        if name == "device-only":
            return Alone(device.id, name, "the policy says so")
        budget = self.config.budget
        regime = self._regime(cloud.id, device.id)
        if regime is Regime.DEVICE_CONSTRAINED:
            if not affordable:
                return Alone(cloud.id, "disco-d", "cloud alone: the device's budget is spent")
            waits = fit_waits(self._server_ttft(cloud.id), self._prompt_lengths, budget, self.config.tail_share)
            return WaitTime(cloud.id, device.id, waits, budget)
        if not affordable:
            return Alone(device.id, "disco-s", "device alone: the cloud's budget is spent")
        return Threshold(cloud.id, device.id, fit_threshold(self._prompt_lengths, budget), budget)

    def _static(self, eligible: Sequence[EndpointInfo]) -> DispatchPlan:
        """The cheapest decoder, without any estimate."""
        cheapest = min(eligible, key=lambda info: self.costs.unit[info.id].decode)
        return DispatchPlan((Launch(cheapest.id),), "static", "an estimate failed; the cheapest endpoint serves")

    def _best(
        self, infos: Sequence[EndpointInfo], prompt_tokens: int
    ) -> tuple[EndpointInfo | None, EndpointInfo | None]:
        """The fastest cloud endpoint and the fastest device for this prompt, by expected TTFT."""

        def fastest(kind: EndpointKind) -> EndpointInfo | None:
            of_kind = [info for info in infos if info.kind is kind]
            return min(of_kind, key=lambda i: self._profiles[i.id].expected_ttft(prompt_tokens), default=None)

        return fastest(EndpointKind.CLOUD), fastest(EndpointKind.DEVICE)

    def _regime(self, cloud: EndpointId, device: EndpointId) -> Regime:
        return self.config.regime or regime_of(self.costs.unit[device], self.costs.unit[cloud])

    def _server_ttft(self, endpoint: EndpointId) -> EmpiricalTtft:
        """F; a server that behaves linearly has the TTFTs it would give to the prompts seen."""
        ttft = self._profiles[endpoint].ttft
        if isinstance(ttft, EmpiricalTtft):
            return ttft
        return EmpiricalTtft([ttft.predict(float(length)) for length in self._prompt_lengths.lengths])

    def _refit(self, now: float) -> None:
        self._profiles = {name: seen.profile() for name, seen in self._seen.items()}
        prompts = list(self._prompts)
        if len(prompts) < ENOUGH:
            prompts += exponential_quantiles(PRIOR_PROMPT, ENOUGH)
        self._prompt_lengths = LengthDistribution.of_samples(prompts)
        outputs = list(self._outputs)
        if len(outputs) < ENOUGH:
            outputs += exponential_quantiles(PRIOR_OUTPUT, ENOUGH)
        self._output_lengths = OutputLengths(outputs)
        self._fitted_at, self._news = now, False
