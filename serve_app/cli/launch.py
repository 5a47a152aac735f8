"""A local Ray with the application in it, from the first process to the last."""

from __future__ import annotations

import asyncio
import io
import logging
import math
import os
import secrets
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from serve_app.cli.configfile import ROUTER, Configuration
from serve_app.cli.signals import listen
from serve_app.cli.supervisor import DIRECTORIES, directory_prefix
from serve_app.settings import AppSettings

if TYPE_CHECKING:
    from ray.serve.schema import ApplicationStatusOverview

    from actors.labels import Labels

#: Bytes; Ray's minimum is 75 MiB, and no object here is larger than a chunk of tokens.
OBJECT_STORE: Final = 80 * 2**20

#: Seconds that streams under way have to end, and then to say why they do not.
GRACE: Final = 3.0
LAST_WORDS: Final = 1.0

#: Seconds. Whatever still lives after this is killed with the process.
SHUTDOWN_LIMIT: Final = 25.0

#: Ray's switch for the token that every call to it must carry.
AUTHENTICATION: Final = "RAY_AUTH_MODE"

#: Where the user may have put that token, or the path of its file.
TOKENS: Final = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")

#: Where programs put what they think of as temporary. vLLM's processes leave sockets and files behind.
TEMPORARY: Final = "TMPDIR"

#: Ray's switches for this process and all that it starts. They have to be set before Ray is imported.
ENVIRONMENT: Final = {
    "RAY_ADDRESS": "local",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Serve's replicas listen on every interface; the token is what keeps strangers out.
    AUTHENTICATION: "token",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    # Implied by the switch above for replicas, but the proxy looks before it is implied.
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",
    # Implied too, but only HAProxy would use the extra port; and HAProxy cannot be bound to loopback.
    "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0",
    "RAY_SERVE_ENABLE_HA_PROXY": "0",
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0",
    "RAY_SERVE_LOG_TO_STDERR": "0",
    # Seconds. At Serve's 0.1 the controller alone keeps 3 % of a core busy, streams or not.
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
    # Seconds. Serve's 5 are too few for its proxy on a busy machine: it is killed, and the start fails.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "30",
}


class LaunchFailed(Exception):
    """Ray or the application did not start; ``logs`` were kept for a look."""

    def __init__(self, message: str, logs: Path | None = None) -> None:
        super().__init__(message, logs)
        self.message = message
        self.logs = logs


class NoPlace(LaunchFailed):
    """No node of this Ray may host the router. No log could tell more."""


def ray_cpus(app: AppSettings) -> int:
    """What the actors ask for, at their most, and one for Serve's own tasks. Bookkeeping: Ray reserves no real core."""
    wanted = app.router.num_cpus * app.router.replicas
    for endpoint in app.endpoints.values():
        placement = endpoint.placement
        wanted += placement.num_cpus * placement.most_replicas
    return math.ceil(wanted) + 1


def prepare(environment: Mapping[str, str] = ENVIRONMENT) -> None:
    """Set Ray's switches, which Ray reads once, when it is imported.

    Raises ``LaunchFailed`` where that is too late, or where the user's environment turns Ray's authentication off:
    that would let everybody who reaches this machine run code on it, so it is neither obeyed nor silently undone.
    """
    wanted, found = environment.get(AUTHENTICATION), os.environ.get(AUTHENTICATION)
    if wanted == "token" and found is not None and found.lower() != wanted:
        raise LaunchFailed(
            f"{AUTHENTICATION}={found} turns off the authentication of Ray, whose ports are open to the network; "
            f"remove it: `unset {AUTHENTICATION}`"
        )
    if wanted == "token" and not any(name in os.environ for name in TOKENS):
        # Ray would keep one token for all its clusters, in a file that everybody on this machine may read.
        os.environ[TOKENS[0]] = secrets.token_hex(32)
    if all(os.environ.get(name) == value for name, value in environment.items()):
        return
    if "ray" in sys.modules:
        raise LaunchFailed("Ray was imported before its switches were set; start the service from a process of its own")
    os.environ.update(environment)


@contextmanager
def running(configuration: Configuration, environment: Mapping[str, str] = ENVIRONMENT) -> Iterator[None]:
    """The application, submitted; it is gone without a trace when the block ends. Call within ``stop_by_signal``."""
    prepare(environment)
    # Only its user may enter it. Ray keeps opening its own directory, below this one, to everybody.
    directory = Path(tempfile.mkdtemp(prefix=directory_prefix(os.getpid()), dir=DIRECTORIES))
    logs: Path | None = None
    temporary = os.environ.setdefault(TEMPORARY, str(directory))
    try:
        _start(configuration, directory)
        yield
    except NoPlace:
        raise
    except LaunchFailed as error:
        logs = Path(tempfile.mkdtemp(prefix="disco-logs-", dir=DIRECTORIES))
        raise LaunchFailed(error.message, logs) from None
    finally:
        _shut_down(application_name(configuration))
        if temporary == str(directory):
            os.environ.pop(TEMPORARY, None)
        if logs is not None:
            directory.rename(logs)
        shutil.rmtree(directory, ignore_errors=True)


def _start(configuration: Configuration, directory: Path) -> None:
    logging.getLogger("ray").setLevel(logging.ERROR)
    from ray.serve._private.api import serve_start
    from ray.serve.config import gRPCOptions
    from ray.serve.schema import ServeDeploySchema

    from actors.labels import node_labels

    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    schema = ServeDeploySchema.model_validate(configuration.document)
    try:
        _start_ray(ray_cpus(configuration.app), directory)
        require_place(configuration.app, node_labels())
        # ray.init() installs a handler for SIGTERM that would exit without a shutdown.
        listen()
        client = serve_start(
            http_options=schema.http_options.model_dump(),
            proxy_location=schema.proxy_location,
            grpc_options=gRPCOptions(**schema.grpc_options.model_dump()),
            global_logging_config=schema.logging_config,
        )
        client.deploy_apps(schema, _blocking=False)
    except LaunchFailed:
        raise
    except Exception as error:
        raise LaunchFailed(f"Ray Serve did not start: {type(error).__name__}: {error}") from error


def require_place(app: AppSettings, nodes: Sequence[Labels]) -> None:
    """Raises ``NoPlace``: Serve would wait for ever, and not say for what. ``nodes``: the labels of each."""
    from actors.labels import unmet

    missing = unmet(app.router.label_selector, nodes)
    if missing:
        wanted = ", ".join(f"{label}: {wish}" for label, wish in missing.items())
        raise NoPlace(
            f"applications.0.args.router.label_selector: the router wants a node with {wanted}, and `disco up` starts "
            "one node, without labels of yours; remove it for this machine, or `serve deploy` the file to a Ray whose "
            "nodes have them (`ray start --labels ...`)"
        )


def _start_ray(cpus: int, directory: Path, attempts: int = 2) -> None:
    """More than once, for Ray gives its processes 30 s to come up, which a busy machine may exceed."""
    import ray

    try:
        ray.init(
            address="local",
            namespace="serve",
            num_cpus=cpus,
            object_store_memory=OBJECT_STORE,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            # A socket's path has room for 103 characters, and Ray adds up to 70.
            _temp_dir=str(directory / "r"),
        )
    except Exception as error:
        ray.shutdown()
        if "timed out" not in str(error):
            raise
        if attempts == 1:
            raise LaunchFailed(
                "Ray did not come up in the 30 s that it gives itself, twice; is this machine busy? "
                "Close other programs and try again"
            ) from error
        _start_ray(cpus, directory, attempts - 1)


def application_name(configuration: Configuration) -> str:
    return str(configuration.document["applications"][0].get("name", "default"))


def deployment_failure(application: str) -> str | None:
    """Why Serve gave up on the application; None while it has not."""
    from ray.serve.schema import ApplicationStatus

    status = _status(application)
    if status is None or status.status is not ApplicationStatus.DEPLOY_FAILED:
        return None
    return status.message or "Serve gave no reason"


def _is_running(application: str) -> bool:
    from ray.serve.schema import ApplicationStatus

    status = _status(application)
    return status is not None and status.status is ApplicationStatus.RUNNING


def _status(application: str) -> ApplicationStatusOverview | None:
    from ray import serve

    return serve.status().applications.get(application)


async def _drain(application: str) -> None:
    """Serve's own shutdown begins with its proxy, which cuts every stream. Let them end before, or say why they end."""
    from ray.serve.handle import DeploymentHandle

    router: DeploymentHandle[Any] = DeploymentHandle(ROUTER, application)
    with suppress(Exception):
        await asyncio.wait_for(router.broadcast("drain", GRACE).results_async(), GRACE + LAST_WORDS)


def _shut_down(application: str) -> None:
    import ray
    from ray import serve

    watchdog = threading.Timer(SHUTDOWN_LIMIT, os._exit, args=(1,))
    watchdog.daemon = True
    watchdog.start()
    # What still polls Serve's controller, on a loop that has ended by now, would report both as failures.
    logging.getLogger("ray.serve").setLevel(logging.CRITICAL)
    # Serve ends its controller by force, and a thread of Ray's prints that as a failure with infinite retries.
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        try:
            if ray.is_initialized():
                if _is_running(application):
                    asyncio.run(_drain(application))
                serve.shutdown()  # type: ignore[no-untyped-call]
        finally:
            ray.shutdown()
            watchdog.cancel()
