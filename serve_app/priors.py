"""What the router believes about an endpoint before it has seen any of its answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np

from actors.engines.profile_file import load_prior
from actors.engines.profiles import CloudProfile, Profile, load_profile
from serve_app.core.breaker import BreakerConfig, Breakers
from serve_app.core.budget import TokenBudget
from serve_app.core.cost import CostModel, Regime, UnitCost, device_unit_cost
from serve_app.core.energy import JOULES_PER_TOKEN_AND_BILLION, DeviceState, exchange_rate
from serve_app.core.handover import HandoverRule
from serve_app.core.latency import EmpiricalTtft, LatencyProfile, LinearTtft
from serve_app.core.load import Capacity, EndpointLoad
from serve_app.core.migration import MigrationMode
from serve_app.core.model import EndpointId, EndpointInfo
from serve_app.core.planner import Planner, PlannerConfig
from serve_app.engine_settings import (
    EngineSettings,
    OpenAIHttpEngineSettings,
    ShapedEngineSettings,
    SimulatedEngineSettings,
)
from serve_app.settings import AppSettings, DeviceSettings, EndpointPrice, EndpointSettings, LiveSettings, RegimeSetting
from serve_app.state import LocalState

_NOBODY: Final[Mapping[EndpointId, EndpointPrice]] = MappingProxyType({})
_NOTHING: Final[Mapping[EndpointId, DeviceState]] = MappingProxyType({})

#: A small model on a laptop: pessimistic enough to be corrected by the first few answers.
UNKNOWN = LatencyProfile(LinearTtft(slope=1 / 100, intercept=0.3), prefill_rate=100.0, decode_rate=20.0)

#: A server behind a network, on a machine that is made for it.
SERVER = LatencyProfile(LinearTtft(slope=1 / 2000, intercept=0.6), prefill_rate=2000.0, decode_rate=40.0)


def prior_profile(engine: EngineSettings) -> LatencyProfile:
    """From the measured profile that is named or imitated, or the simulation's own settings; else a modest guess."""
    if engine.prior is not None:
        return believed(load_prior(engine.prior))
    match engine:
        case ShapedEngineSettings():
            return believed(load_profile(engine.profile))
        case OpenAIHttpEngineSettings():
            return SERVER
        case SimulatedEngineSettings():
            linear = LinearTtft(1 / engine.prefill_rate, engine.overhead + 1 / engine.decode_rate)
            return LatencyProfile(linear, engine.prefill_rate, engine.decode_rate)
    return UNKNOWN


def believed(profile: Profile) -> LatencyProfile:
    if isinstance(profile, CloudProfile):
        samples = EmpiricalTtft(np.array(profile.ttft_samples()))
        return LatencyProfile(samples, prefill_rate=1e6, decode_rate=profile.decode_rate)
    linear = LinearTtft(profile.slope, profile.intercept)
    return LatencyProfile(linear, profile.prefill_rate, profile.decode_rate)


def cost_model(
    app: AppSettings,
    live: LiveSettings,
    joined: Mapping[EndpointId, EndpointPrice] = _NOBODY,
    said: Mapping[EndpointId, DeviceState] = _NOTHING,
) -> CostModel:
    """USD per token of every endpoint: API price plus energy at the exchange rate lambda (paper 2).

    joined: prices of devices that no configuration knows. said: what devices say of themselves now.
    """
    prices = live.prices
    known = {name: prices.endpoints.get(name, EndpointPrice()) for name in app.endpoints} | dict(joined)
    units = {}
    for name, price in known.items():
        device = prices.devices.get(name, DeviceSettings())
        state = said.get(name, DeviceState()).or_else(
            DeviceState(device.battery, device.charging, device.temperature_celsius)
        )
        per_joule = exchange_rate(state, prices.usd_per_megajoule / 1e6, prices.mains_usd_per_megajoule / 1e6)
        by_size = price.parameters_billion * JOULES_PER_TOKEN_AND_BILLION
        prefill, decode = (
            by_size if joules is None else joules
            for joules in (price.prefill_joules_per_token, price.decode_joules_per_token)
        )
        energy = device_unit_cost(prefill, decode, per_joule)
        units[name] = UnitCost(
            price.input_usd_per_mtok / 1e6 + energy.prefill, price.output_usd_per_mtok / 1e6 + energy.decode
        )
    forgiving = (name for name, price in known.items() if price.bill_on_cancel == "nothing")
    return CostModel(units, frozenset(forgiving))


def planner_config(live: LiveSettings) -> PlannerConfig:
    policy, migration = live.policy, live.migration
    regime = None if live.regime is RegimeSetting.AUTO else Regime(live.regime.value)
    mode = None if migration.mode == "off" or not migration.max_planned else MigrationMode(migration.mode)
    handover = HandoverRule(mode, live.reader.consumption_rate, migration.network_seconds)
    return PlannerConfig(
        policy.name, regime, policy.budget, policy.tail_share, policy.refit_seconds, policy.window, handover
    )


def breaker_config(live: LiveSettings) -> BreakerConfig:
    limits = live.limits
    longest = limits.breaker_seconds
    return BreakerConfig(limits.breaker_faults, shortest=min(BreakerConfig().shortest, longest), longest=longest)


def capacity(settings: EndpointSettings) -> Capacity:
    return Capacity(settings.slots, settings.placement.replicas, settings.placement.most_replicas)


def initial_state(app: AppSettings, live: LiveSettings, infos: Sequence[EndpointInfo]) -> LocalState:
    """What a router that has seen nothing yet goes by."""
    priors = {name: prior_profile(settings.engine) for name, settings in app.endpoints.items()}
    return LocalState(
        Planner(planner_config(live), infos, cost_model(app, live), priors),
        TokenBudget(live.policy.budget),
        EndpointLoad({name: capacity(settings) for name, settings in app.endpoints.items()}),
        Breakers(breaker_config(live)),
    )
