from __future__ import annotations

import pytest
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    NodeDiedError,
    RayActorError,
    RayTaskError,
    TaskCancelledError,
    WorkerCrashedError,
)
from ray.serve.exceptions import BackPressureError, ReplicaUnavailableError, RequestCancelledError

from actors.faults import failure_of
from serve_app.core.errors import (
    DiscoError,
    EndpointFault,
    EndpointTimeout,
    EndpointUnavailable,
    Overloaded,
    PromptTooLong,
)

CANARY = "canary-in-the-prompt"


def wrapped(cause: Exception, dual: bool) -> Exception:
    error = RayTaskError("generate", f"traceback with {CANARY}", cause, pid=1, ip="127.0.0.1", proctitle="replica")
    return error.as_instanceof_cause() if dual else error


@pytest.mark.parametrize("dual", [False, True])
def test_our_errors_come_out_of_rays_wrapping_as_themselves(dual: bool) -> None:
    too_long = failure_of(wrapped(PromptTooLong("too long", "messages"), dual), "phone")
    assert (type(too_long), too_long.args) == (PromptTooLong, ("too long", "messages"))
    timeout = failure_of(wrapped(EndpointTimeout("late"), dual), "phone")
    assert (type(timeout), timeout.args) == (EndpointTimeout, ("late", "phone"))
    named = failure_of(wrapped(EndpointFault("odd", "inner"), dual), "phone")
    assert named.args == ("odd", "inner")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RayActorError(), EndpointUnavailable),
        (ActorDiedError(), EndpointUnavailable),
        (ActorUnavailableError("gone", b"x" * 16), EndpointUnavailable),
        (NodeDiedError("gone"), EndpointUnavailable),
        (WorkerCrashedError(), EndpointUnavailable),
        (ReplicaUnavailableError("r"), EndpointUnavailable),
        (TaskCancelledError(), EndpointUnavailable),
        (RequestCancelledError("r"), EndpointUnavailable),
        (BackPressureError(1, 1, retry_after_s=3.0), Overloaded),
        (ValueError(CANARY), EndpointFault),
    ],
)
@pytest.mark.parametrize("wrap", [None, False, True])
def test_every_failure_of_ray_has_one_meaning_and_no_foreign_text(
    error: Exception, kind: type[DiscoError], wrap: bool | None
) -> None:
    failure = failure_of(error if wrap is None else wrapped(error, wrap), "phone")
    assert type(failure) is kind
    assert CANARY not in repr(failure)
    if isinstance(failure, Overloaded):
        assert failure.retry_after == 3.0
