"""Every configuration that is shipped is sound, for this project and for Ray Serve."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ray.serve.schema import ServeDeploySchema

from serve_app.auth import is_loopback
from serve_app.cli.check import regime
from serve_app.cli.configfile import load, shipped
from serve_app.core.cost import Regime
from serve_app.core.model import EndpointKind
from serve_app.engine_settings import ShapedEngineSettings
from serve_app.priors import cost_model
from serve_app.settings import LiveSettings


@pytest.fixture(params=shipped())
def name(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_there_are_some() -> None:
    assert {"disco", "simulated"} <= set(shipped())


def test_ray_accepts_what_the_settings_accept(name: str) -> None:
    configuration = load(name)
    schema = ServeDeploySchema.model_validate(dict(configuration.document))
    assert schema.proxy_location == "HeadOnly"
    assert is_loopback(schema.http_options.host)
    assert schema.logging_config is not None
    assert schema.logging_config.enable_access_log is False


@pytest.mark.parametrize("name", ["disco", "simulated"])
def test_what_is_imitated_and_not_billed_says_so(name: str) -> None:
    configuration = load(name)
    assert configuration.live.prices.notional
    assert set(configuration.live.prices.endpoints) == set(configuration.app.endpoints)
    for endpoint, settings in configuration.app.endpoints.items():
        assert isinstance(settings.engine, ShapedEngineSettings)
        assert configuration.live.prices.endpoints[endpoint].source
    assert {settings.kind for settings in configuration.app.endpoints.values()} == set(EndpointKind)


@pytest.mark.parametrize("name", ["disco", "simulated"])
@pytest.mark.parametrize(
    ("usd_per_megajoule", "expected"), [(5000.0, Regime.DEVICE_CONSTRAINED), (0.05, Regime.SERVER_CONSTRAINED)]
)
def test_the_regime_is_one_line(name: str, usd_per_megajoule: float, expected: Regime) -> None:
    configuration = load(name)
    live = configuration.live.model_dump()
    live["prices"]["usd_per_megajoule"] = usd_per_megajoule
    changed = replace(configuration, live=LiveSettings.model_validate(live))
    assert regime(changed, cost_model(changed.app, changed.live)) == (expected, "by prices")
