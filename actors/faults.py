"""Ray's many ways to fail, told once in this project's words. No message repeats what Ray's exception says."""

from __future__ import annotations

import grpc  # type: ignore[import-untyped]
from ray.exceptions import (
    GetTimeoutError,
    NodeDiedError,
    ObjectLostError,
    RayActorError,
    RayTaskError,
    RpcError,
    TaskCancelledError,
    WorkerCrashedError,
)
from ray.serve.exceptions import (
    BackPressureError,
    DeploymentUnavailableError,
    ReplicaUnavailableError,
)

from serve_app.core.errors import DiscoError, EndpointError, EndpointFault, EndpointUnavailable, Overloaded
from serve_app.core.model import EndpointId

_GONE = (
    RayActorError,
    WorkerCrashedError,
    NodeDiedError,
    ObjectLostError,
    RpcError,
    GetTimeoutError,
    DeploymentUnavailableError,
    ReplicaUnavailableError,
    grpc.RpcError,
)


def failure_of(error: Exception, endpoint: EndpointId) -> DiscoError:
    """What ``error``, raised by a call to ``endpoint``, means to the router. The most specific reading comes first."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    match cause:
        case EndpointError():
            return type(cause)(cause.message, cause.endpoint or endpoint)
        case DiscoError():
            return cause
        case BackPressureError():
            return Overloaded("the endpoint's queue is full", cause.retry_after_s or 1.0)
        case TaskCancelledError():
            return EndpointUnavailable("the call was cancelled on the endpoint's side", endpoint)
        case _ if isinstance(cause, _GONE):
            return EndpointUnavailable(f"the endpoint is gone ({type(cause).__name__})", endpoint)
    return EndpointFault(f"the endpoint raised {type(cause).__name__}", endpoint)
