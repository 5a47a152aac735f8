from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.core.energy import DeviceState, exchange_rate

BATTERY, MAINS = 5e-3, 5e-8


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (DeviceState(), BATTERY),
        (DeviceState(battery=1.0), BATTERY),
        (DeviceState(battery=0.5, charging=False), 2 * BATTERY),
        (DeviceState(battery=0.1), 10 * BATTERY),
        (DeviceState(battery=0.0), 20 * BATTERY),
        (DeviceState(battery=0.1, charging=True), MAINS),
        (DeviceState(charging=True, temperature=45.0), 2 * MAINS),
        (DeviceState(battery=0.5, temperature=50.0), 8 * BATTERY),
        (DeviceState(temperature=39.0), BATTERY),
    ],
)
def test_what_a_joule_is_worth(state: DeviceState, expected: float) -> None:
    assert exchange_rate(state, BATTERY, MAINS) == pytest.approx(expected)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(20, 60), st.floats(20, 60))
def test_emptier_or_hotter_is_never_cheaper(a: float, b: float, cool: float, hot: float) -> None:
    emptier, fuller = sorted((a, b))
    cool, hot = sorted((cool, hot))
    at_best = exchange_rate(DeviceState(fuller, temperature=cool), BATTERY, MAINS)
    assert at_best <= exchange_rate(DeviceState(emptier, temperature=hot), BATTERY, MAINS)


@given(st.floats(0, 1), st.floats(0, 60), st.floats(1e-9, 1), st.floats(1e-9, 1))
def test_the_plug_makes_a_joule_no_dearer_where_the_mains_are_cheaper(
    charge: float, heat: float, one: float, other: float
) -> None:
    mains, battery = sorted((one, other))
    plugged = exchange_rate(DeviceState(charge, charging=True, temperature=heat), battery, mains)
    assert plugged <= exchange_rate(DeviceState(charge, charging=False, temperature=heat), battery, mains)


@pytest.mark.parametrize(
    ("said", "configured", "together"),
    [
        (DeviceState(), DeviceState(0.5, True, 20.0), DeviceState(0.5, True, 20.0)),
        (DeviceState(0.1), DeviceState(0.5, True, 20.0), DeviceState(0.1, None, 20.0)),
        (DeviceState(charging=False), DeviceState(0.5, True), DeviceState(charging=False)),
        (DeviceState(temperature=45.0), DeviceState(0.5, True, 20.0), DeviceState(0.5, True, 45.0)),
    ],
)
def test_what_a_device_does_not_say_is_as_configured(
    said: DeviceState, configured: DeviceState, together: DeviceState
) -> None:
    assert said.or_else(configured) == together
