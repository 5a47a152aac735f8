from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.engines.factory import make_engine
from actors.engines.profiles import CloudProfile, DeviceProfile, known_profiles, load_profile
from serve_app.core import cost
from serve_app.core.handover import NOTHING_MOVES, HandoverRule
from serve_app.core.latency import EmpiricalTtft, LinearTtft
from serve_app.core.migration import MigrationMode
from serve_app.core.model import ChatPrompt, EndpointKind, GenerationRequest, Message, Receipt, Sampling, TokenChunk
from serve_app.core.planner import PlannerConfig
from serve_app.core.policies import PolicyName
from serve_app.engine_settings import (
    EngineSettings,
    LlamaCppEngineSettings,
    ReplayEngineSettings,
    ShapedEngineSettings,
    SimulatedEngineSettings,
)
from serve_app.priors import UNKNOWN, cost_model, planner_config, prior_profile
from serve_app.settings import (
    AppSettings,
    DeviceSettings,
    EndpointPrice,
    EndpointSettings,
    LiveSettings,
    MigrationSettings,
    PolicySettings,
    PriceSettings,
    ReaderSettings,
    RegimeSetting,
)
from tests.support.virtual_loop import run_virtual

APP = AppSettings(
    endpoints={
        "cloud": EndpointSettings(kind=EndpointKind.CLOUD, engine=SimulatedEngineSettings()),
        "phone": EndpointSettings(kind=EndpointKind.DEVICE, engine=SimulatedEngineSettings()),
    }
)
#: gpt-4o-mini's list price, USD per million tokens, and a phone that needs more energy for a decoded token.
CLOUD_PRICE = EndpointPrice(input_usd_per_mtok=0.15, output_usd_per_mtok=0.60)
PHONE_PRICE = EndpointPrice(prefill_joules_per_token=0.1, decode_joules_per_token=0.4)


def priced(usd_per_megajoule: float, **endpoints: EndpointPrice) -> cost.CostModel:
    prices = PriceSettings(usd_per_megajoule=usd_per_megajoule, endpoints=endpoints)
    return cost_model(APP, LiveSettings(prices=prices))


# --- latency --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", known_profiles())
def test_an_imitated_endpoint_is_believed_to_be_what_it_imitates(name: str) -> None:
    profile = load_profile(name)
    prior = prior_profile(ShapedEngineSettings(profile=name, engine=LlamaCppEngineSettings()))
    assert prior.decode_rate == profile.decode_rate
    if isinstance(profile, DeviceProfile):
        assert isinstance(prior.ttft, LinearTtft)
        assert [prior.expected_ttft(length) for length in (1, 62, 900)] == [
            pytest.approx(profile.ttft(length)) for length in (1, 62, 900)
        ]
        assert prior.prefill_rate == profile.prefill_rate
    else:
        assert isinstance(prior.ttft, EmpiricalTtft)
        for share in (0.105, 0.505, 0.955):
            assert prior.ttft.quantile(share) == pytest.approx(profile.ttft_at(share))
        assert prior.expected_ttft(1) == prior.expected_ttft(4000)
        assert profile.ttft[0] <= prior.ttft.samples[0] <= prior.ttft.samples[-1] <= profile.ttft[-1]


def test_profiles_of_both_kinds_are_known() -> None:
    assert {type(load_profile(name)) for name in known_profiles()} == {CloudProfile, DeviceProfile}


def test_an_unknown_profile_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"no profile named 'abacus'; known: .*pixel7pro"):
        prior_profile(ShapedEngineSettings(profile="abacus", engine=SimulatedEngineSettings()))


@pytest.mark.parametrize("words", [1, 40, 400])
def test_a_simulated_endpoint_is_believed_to_be_what_it_is(words: int) -> None:
    settings = SimulatedEngineSettings(prefill_rate=80.0, decode_rate=12.5, overhead=0.3, output_tokens=(40, 60))
    prompt_tokens, times = run_virtual(first_and_last(settings, "a " * words))
    prior = prior_profile(settings)
    assert prior.expected_ttft(prompt_tokens) == pytest.approx(times[0])
    assert prior.decode_rate == pytest.approx((len(times) - 1) / (times[-1] - times[0]))
    assert prior.prefill_rate == 80.0


async def first_and_last(settings: SimulatedEngineSettings, text: str) -> tuple[int, list[float]]:
    """Tokens of the prompt as the engine counts them, and the time of every token after the request."""
    engine, loop = make_engine(settings, 1, 1), asyncio.get_running_loop()
    request = GenerationRequest("a", ChatPrompt((Message("user", text),)), Sampling(max_tokens=30))
    prompt_tokens, times, start = 0, list[float](), loop.time()
    async for item in engine.generate(request):
        match item:
            case Receipt(prompt_tokens=int(counted)):
                prompt_tokens = counted
            case TokenChunk(count=1):
                times.append(loop.time() - start)
    return prompt_tokens, times


@pytest.mark.parametrize("engine", [LlamaCppEngineSettings(), ReplayEngineSettings(path="streams.jsonl")])
def test_of_other_engines_nothing_is_known_but_a_modest_guess(engine: EngineSettings) -> None:
    prior = prior_profile(engine)
    assert prior is UNKNOWN
    assert prior.expected_ttft(60) == pytest.approx(0.9)


# --- costs ----------------------------------------------------------------------------------------------------------


def test_money_is_per_million_tokens_and_energy_is_exchanged_per_million_joules() -> None:
    model = priced(5.0, cloud=CLOUD_PRICE, phone=PHONE_PRICE)
    assert model.cost("cloud", 1_000_000, 0) == pytest.approx(0.15)
    assert model.cost("cloud", 0, 1_000_000) == pytest.approx(0.60)
    assert model.cost("phone", 1_000_000, 0) == pytest.approx(0.1 * 5.0)
    assert model.cost("phone", 0, 1_000_000) == pytest.approx(0.4 * 5.0)


def test_an_endpoint_may_cost_money_and_energy() -> None:
    both = EndpointPrice(
        input_usd_per_mtok=1.0, output_usd_per_mtok=2.0, prefill_joules_per_token=0.5, decode_joules_per_token=0.25
    )
    unit = priced(4.0, phone=both).unit["phone"]
    assert unit == cost.UnitCost(pytest.approx(3e-6), pytest.approx(3e-6))  # type: ignore[arg-type]


def test_an_endpoint_without_a_price_is_free() -> None:
    model = priced(5.0, cloud=CLOUD_PRICE)
    assert set(model.unit) == {"cloud", "phone"}
    assert model.unit["phone"] == cost.UnitCost(0.0, 0.0)


def test_the_exchange_rate_alone_turns_the_regime() -> None:
    regimes = []
    for usd_per_megajoule in (0.05, 5000.0):
        unit = priced(usd_per_megajoule, cloud=CLOUD_PRICE, phone=PHONE_PRICE).unit
        regimes.append(cost.regime_of(unit["phone"], unit["cloud"]))
    assert regimes == [cost.Regime.SERVER_CONSTRAINED, cost.Regime.DEVICE_CONSTRAINED]


@settings(deadline=None)
@given(st.floats(0, 1e4), st.floats(0, 10), st.floats(0, 10), st.integers(0, 10_000), st.integers(0, 10_000))
def test_energy_costs_are_the_papers_formula(
    usd_per_megajoule: float, prefill: float, decode: float, prompt_tokens: int, output_tokens: int
) -> None:
    price = EndpointPrice(prefill_joules_per_token=prefill, decode_joules_per_token=decode)
    joules = prefill * prompt_tokens + decode * output_tokens
    paid = priced(usd_per_megajoule, phone=price).cost("phone", prompt_tokens, output_tokens)
    assert paid == pytest.approx(usd_per_megajoule * joules / 1e6)


# --- the planner's configuration ------------------------------------------------------------------------------------


def test_every_policy_setting_reaches_the_planner() -> None:
    policy = PolicySettings(name=PolicyName.DEVICE_ONLY, budget=0.3, tail_share=0.1, refit_seconds=7.0, window=40)
    migration = MigrationSettings(mode="break", network_seconds=0.2)
    reader = ReaderSettings(consumption_rate=3.3)
    assert planner_config(LiveSettings(policy=policy, migration=migration, reader=reader)) == PlannerConfig(
        policy=PolicyName.DEVICE_ONLY,
        regime=None,
        budget=0.3,
        tail_share=0.1,
        refit_seconds=7.0,
        window=40,
        handover=HandoverRule(MigrationMode.BREAK, 3.3, 0.2),
    )


@pytest.mark.parametrize("migration", [MigrationSettings(mode="off"), MigrationSettings(max_planned=0)])
def test_where_nothing_moves_answers_are_budgeted_whole(migration: MigrationSettings) -> None:
    assert planner_config(LiveSettings(migration=migration)).handover.mode is None


def test_both_sets_of_defaults_agree() -> None:
    assert replace(planner_config(LiveSettings()), handover=NOTHING_MOVES) == PlannerConfig()


@pytest.mark.parametrize("regime", RegimeSetting)
def test_a_regime_is_passed_on_and_auto_leaves_it_to_prices(regime: RegimeSetting) -> None:
    passed = planner_config(LiveSettings(regime=regime)).regime
    assert passed == (None if regime is RegimeSetting.AUTO else cost.Regime(regime.value))


def test_energy_by_the_model_s_size_where_nothing_is_measured() -> None:
    sized = priced(10.0, phone=EndpointPrice(parameters_billion=1.5)).unit["phone"]
    assert (sized.prefill, sized.decode) == (pytest.approx(0.15 * 1e-5), pytest.approx(0.15 * 1e-5))
    half_measured = EndpointPrice(parameters_billion=1.5, decode_joules_per_token=0.4)
    assert priced(10.0, phone=half_measured).unit["phone"].decode == pytest.approx(0.4 * 1e-5)


def test_a_device_s_state_moves_its_price_and_so_the_constrained_side() -> None:
    def constrained(**state: object) -> cost.Regime:
        devices = {"phone": DeviceSettings.model_validate(state)}
        prices = PriceSettings(
            usd_per_megajoule=5000.0, endpoints={"cloud": CLOUD_PRICE, "phone": PHONE_PRICE}, devices=devices
        )
        unit = cost_model(APP, LiveSettings(prices=prices)).unit
        return cost.regime_of(unit["phone"], unit["cloud"])

    assert constrained(battery=0.4) is cost.Regime.DEVICE_CONSTRAINED
    assert constrained(battery=0.4, charging=True) is cost.Regime.SERVER_CONSTRAINED


def test_a_state_of_no_endpoint_is_refused() -> None:
    prices = PriceSettings(devices={"fone": DeviceSettings()})
    with pytest.raises(ValueError, match=r"prices\.devices: no endpoint named 'fone'; known: cloud, phone"):
        LiveSettings(prices=prices).check_against(APP)
