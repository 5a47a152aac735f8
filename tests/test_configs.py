"""Every configuration that is shipped is sound, for this project and for Ray Serve."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ray.serve import Application, Deployment
from ray.serve.schema import ServeDeploySchema

from serve_app.app import build_app
from serve_app.auth import is_loopback
from serve_app.cli.check import regime
from serve_app.cli.configfile import load, shipped
from serve_app.core.cost import Regime
from serve_app.core.model import EndpointKind
from serve_app.engine_settings import LlamaCppEngineSettings, ShapedEngineSettings
from serve_app.priors import cost_model
from serve_app.settings import AppSettings, LiveSettings


@pytest.fixture(params=shipped())
def name(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_there_are_some() -> None:
    assert {"disco", "simulated"} <= set(shipped())


def test_ray_accepts_what_the_settings_accept(name: str) -> None:
    configuration = load(name, runs_here=False)
    schema = ServeDeploySchema.model_validate(dict(configuration.document))
    if name == "k8s":
        assert schema.proxy_location == "EveryNode"
        assert configuration.app.access.keyed
    else:
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


def test_the_cluster_has_routers_on_two_nodes_and_every_replica_has_its_place() -> None:
    app = load("k8s", runs_here=False).app
    deployments = bound(app)
    router, exchange = deployments["DiscoRouter"], deployments["exchange"]
    assert (router.num_replicas, router._replica_config.max_replicas_per_node) == (2, 1)
    placed = {name: deployment.ray_actor_options.get("label_selector") for name, deployment in deployments.items()}
    assert placed == {
        "DiscoRouter": {"tier": "router"},
        "exchange": {"tier": "router"},
        "endpoint-cloud": {"tier": "cloud"},
        "endpoint-device": {"tier": "device", "cpu-arch": "arm64"},
    }
    assert exchange.ray_actor_options["num_cpus"] < router.ray_actor_options["num_cpus"]


def test_on_the_cluster_a_replica_that_stops_outlasts_its_longest_stream() -> None:
    configuration = load("k8s", runs_here=False)
    longest = configuration.live.limits.stream_seconds
    for name, deployment in bound(configuration.app).items():
        if name != "exchange":
            assert deployment._deployment_config.graceful_shutdown_timeout_s >= longest, name


def test_the_devices_threads_are_the_cores_that_ray_sets_aside() -> None:
    device = load("k8s", runs_here=False).app.endpoints["device"]
    assert isinstance(device.engine, LlamaCppEngineSettings)
    assert device.engine.threads == device.placement.num_cpus


def bound(app: AppSettings) -> dict[str, Deployment]:
    """Every deployment of the application, by name, with the options that Serve is given."""
    found: dict[str, Deployment] = {}

    def collect(value: Any) -> None:
        if isinstance(value, Application):
            deployment = value._bound_deployment
            found[deployment.name] = deployment
            for part in (*deployment.init_args, *deployment.init_kwargs.values()):
                collect(part)
        elif isinstance(value, dict):
            for part in value.values():
                collect(part)

    collect(build_app(app))
    return found
