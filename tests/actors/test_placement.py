from __future__ import annotations

import pytest

from actors.placement import HEADROOM, SHUTDOWN_POLL, deployment_options
from serve_app.core.model import EndpointKind
from serve_app.engine_settings import SimulatedEngineSettings
from serve_app.settings import EndpointSettings, PlacementSettings


def settings(placement: PlacementSettings) -> EndpointSettings:
    return EndpointSettings(
        kind=EndpointKind.DEVICE, engine=SimulatedEngineSettings(), slots=3, queue=5, placement=placement
    )


def test_control_calls_find_room_beside_a_full_queue_and_ray_never_queues() -> None:
    options = deployment_options(settings(PlacementSettings()), 5.0)
    assert options["max_ongoing_requests"] == 3 + 5 + HEADROOM
    assert options["max_queued_requests"] == -1


def test_labels_and_resources_place_the_replicas() -> None:
    options = deployment_options(
        settings(PlacementSettings(num_cpus=2, num_gpus=1, label_selector={"cpu-arch": "arm64"})), 5.0
    )
    assert options["ray_actor_options"] == {"num_cpus": 2, "num_gpus": 1, "label_selector": {"cpu-arch": "arm64"}}
    assert "label_selector" not in deployment_options(settings(PlacementSettings()), 5.0)["ray_actor_options"]


@pytest.mark.parametrize("most", [None, 2])
def test_a_fixed_number_of_replicas(most: int | None) -> None:
    options = deployment_options(settings(PlacementSettings(replicas=2, max_replicas=most)), 5.0)
    assert options["num_replicas"] == 2
    assert "autoscaling_config" not in options


def test_more_replicas_on_demand() -> None:
    options = deployment_options(settings(PlacementSettings(replicas=1, max_replicas=4)), 5.0)
    assert "num_replicas" not in options
    assert options["autoscaling_config"] == {"min_replicas": 1, "max_replicas": 4, "target_ongoing_requests": 3}


@pytest.mark.parametrize(("drain", "poll"), [(600.0, SHUTDOWN_POLL), (0.1, 0.1)])
def test_a_stopping_replica_lets_its_streams_go_on_and_looks_often_enough(drain: float, poll: float) -> None:
    options = deployment_options(settings(PlacementSettings()), drain)
    assert (options["graceful_shutdown_timeout_s"], options["graceful_shutdown_wait_loop_s"]) == (drain, poll)


def test_serve_accepts_the_options() -> None:
    from ray import serve

    from actors.replica import EndpointReplica

    deployment = serve.deployment(EndpointReplica).options(**deployment_options(settings(PlacementSettings()), 5.0))
    assert deployment.max_ongoing_requests == 3 + 5 + HEADROOM
