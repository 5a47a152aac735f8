from __future__ import annotations

import pytest

from serve_app.core.cost import CostModel, Regime, UnitCost, device_unit_cost, mean_unit_cost, regime_of

MILLION = 1e6


def per_million(prefill: float, decode: float) -> UnitCost:
    return UnitCost(prefill / MILLION, decode / MILLION)


GPT_4O_MINI = per_million(0.15, 0.60)


def test_a_server_bills_input_and_output_tokens() -> None:
    model = CostModel({"cloud": GPT_4O_MINI, "phone": UnitCost(0.0, 0.0)})
    assert model.cost("cloud", 1000, 500) == pytest.approx(0.00045)
    assert model.cost("phone", 1000, 500) == 0.0


def test_some_forgive_what_was_cancelled() -> None:
    model = CostModel({"cloud": GPT_4O_MINI, "far": GPT_4O_MINI}, frozenset({"far"}))
    assert model.cost("far", 1000, 500, cancelled=True) == 0.0
    assert model.cost("far", 1000, 500) == model.cost("cloud", 1000, 500, cancelled=True) == pytest.approx(0.00045)


def test_a_device_costs_its_energy_at_the_exchange_rate() -> None:
    unit = device_unit_cost(prefill_joules=0.1, decode_joules=0.4, usd_per_joule=5e-8)
    assert unit == UnitCost(pytest.approx(5e-9), pytest.approx(2e-8))
    assert CostModel({"phone": unit}).cost("phone", 100, 50) == pytest.approx(5e-8 * (0.1 * 100 + 0.4 * 50))


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (per_million(1.0, 2.0), Regime.DEVICE_CONSTRAINED),
        (per_million(0.01, 0.1), Regime.SERVER_CONSTRAINED),
        (per_million(0.01, 0.7), Regime.DEVICE_CONSTRAINED),  # overlapping ranges: the dearer decode
        (per_million(0.3, 0.5), Regime.SERVER_CONSTRAINED),
        (GPT_4O_MINI, Regime.SERVER_CONSTRAINED),
    ],
)
def test_the_dear_side_is_constrained(device: UnitCost, expected: Regime) -> None:
    assert regime_of(device, GPT_4O_MINI) is expected


def test_a_higher_price_of_energy_turns_the_regime() -> None:
    joules = (0.1, 0.4)
    assert regime_of(device_unit_cost(*joules, 5e-8), GPT_4O_MINI) is Regime.SERVER_CONSTRAINED
    assert regime_of(device_unit_cost(*joules, 5e-5), GPT_4O_MINI) is Regime.DEVICE_CONSTRAINED


def test_the_mean_price_of_a_side() -> None:
    assert mean_unit_cost([UnitCost(1.0, 2.0), UnitCost(3.0, 8.0)]) == UnitCost(2.0, 5.0)
