"""Where an endpoint's replicas run and how Serve treats them."""

from __future__ import annotations

from typing import Any

from serve_app.settings import EndpointSettings

# Calls beyond slots and queue that reach a replica: the ones it refuses, and control calls, which must never wait.
HEADROOM = 8

#: Longest wait between two looks at whether the last stream has ended, seconds.
SHUTDOWN_POLL = 0.5

HEALTH_CHECK_PERIOD = 5.0
HEALTH_CHECK_TIMEOUT = 30.0


def deployment_options(settings: EndpointSettings, drain_seconds: float) -> dict[str, Any]:
    """Options of the endpoint's Serve deployment. The replica queues and refuses, so that Ray never does."""
    placement = settings.placement
    actor: dict[str, Any] = {"num_cpus": placement.num_cpus, "num_gpus": placement.num_gpus}
    if placement.label_selector:
        actor["label_selector"] = dict(placement.label_selector)
    options: dict[str, Any] = {
        "ray_actor_options": actor,
        "max_ongoing_requests": settings.slots + settings.queue + HEADROOM,
        "max_queued_requests": -1,
        "graceful_shutdown_timeout_s": drain_seconds,
        "graceful_shutdown_wait_loop_s": min(SHUTDOWN_POLL, drain_seconds),
        "health_check_period_s": HEALTH_CHECK_PERIOD,
        "health_check_timeout_s": HEALTH_CHECK_TIMEOUT,
    }
    if placement.max_replicas is None or placement.max_replicas == placement.replicas:
        options["num_replicas"] = placement.replicas
    else:
        options["autoscaling_config"] = {
            "min_replicas": placement.replicas,
            "max_replicas": placement.max_replicas,
            "target_ongoing_requests": settings.slots,
        }
    return options
