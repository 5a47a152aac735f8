"""DiscoRouter: the Serve deployment that holds the stream service and shows it over HTTP."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray._private.authentication.authentication_utils import is_token_auth_enabled
from ray.serve.handle import DeploymentHandle
from starlette.applications import Starlette

from actors.handles import ServeEndpoint, expected_info
from serve_app.auth import is_loopback
from serve_app.core.errors import DiscoError
from serve_app.core.model import EndpointId
from serve_app.gauges import watch_buffers, watch_state
from serve_app.ingress import Surface, build_http_app
from serve_app.metrics import Metrics
from serve_app.priors import initial_state
from serve_app.ray_metrics import RaySink
from serve_app.service import StreamService
from serve_app.settings import AppSettings, LiveSettings, explain
from serve_app.streams import ClientRequest, EndpointState, Readiness, TextStream
from serve_app.telemetry import Telemetry

#: Seconds between two looks at an endpoint that does not answer yet, and at one that does.
RETRY_PERIOD = 1.0
WATCH_PERIOD = 10.0

#: Seconds between two exchanges with the other router replicas.
TRADE_PERIOD = 1.0

#: Seconds between two readings of the gauges for Ray's metrics, which leave their process every ten.
PUBLISH_PERIOD = 5.0

logger = logging.getLogger(__name__)


class DiscoRouter:
    """``reconfigure`` takes the YAML's ``user_config`` at any time; running streams keep what they started with."""

    def __init__(
        self,
        app: AppSettings,
        handles: Mapping[EndpointId, DeploymentHandle[Any]],
        exchange: DeploymentHandle[Any] | None = None,
    ) -> None:
        live = LiveSettings()
        self._app = app
        self._endpoints = {
            name: ServeEndpoint(handle, expected_info(name, app.endpoints[name])) for name, handle in handles.items()
        }
        self._state = initial_state(app, live, [endpoint.info for endpoint in self._endpoints.values()])
        self._telemetry = Telemetry(app.telemetry, "disco-router")
        self._service = StreamService(self._endpoints, app, live, self._state, self._telemetry)
        self._readiness = {name: EndpointState(False, "starting") for name in self._endpoints}
        self._tasks = {asyncio.create_task(self._watch(name)) for name in self._endpoints}
        if exchange is not None:
            self._tasks.add(asyncio.create_task(self._trade(exchange)))
        self._http_host: str | None = None
        self._configured = False

    def __serve_build_asgi_app__(self) -> Starlette:
        """Called by Serve after the constructor."""
        metrics = Metrics()
        if self._app.telemetry.ray_metrics:
            sink = RaySink()
            metrics.also_to(sink)
            self._tasks.add(asyncio.create_task(_publish(metrics, sink)))
        watch_state(metrics, self._state, self._endpoints)
        watch_buffers(metrics, self._service.buffers)
        self._surface = Surface(
            self, self._app, lambda: self._service.live, lambda: self._http_host, self._telemetry, metrics
        )
        return build_http_app(self._surface)

    async def drain(self, grace: float) -> None:
        """For whoever is about to shut down Serve, which will not say so: answers have ``grace`` seconds left."""
        await self._surface.desk.admission.drain(grace)

    def open(self, request: ClientRequest) -> TextStream:
        return self._service.open(request)

    def models(self) -> Sequence[str]:
        return self._service.models()

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Serve calls it before the first request, too; then settings that cannot be are an error.

        Later it stops a replica that raises here, and could start no other: so the old settings stay in force.
        """
        self._http_host = await effective_http_host()
        require_token(self._http_host)
        try:
            live = LiveSettings.model_validate(user_config)
            live.check_against(self._app)
        except ValueError as error:
            if not self._configured:
                raise
            problems = "; ".join(explain(error, user_config))
            logger.error("the new user_config cannot be used, the old one stays in force: %s", problems)  # noqa: TRY400
            return
        self._configured = True
        self._service.reconfigure(live)

    def readiness(self) -> Readiness:
        return Readiness(any(state.ready for state in self._readiness.values()), dict(self._readiness))

    async def _watch(self, name: EndpointId) -> None:
        """Keep asking one endpoint what it is: that loads its engine, and tells when it is there, or why not."""
        while True:
            try:
                await self._endpoints[name].describe()
            except Exception as error:  # noqa: BLE001 - whatever it is, the endpoint is not ready, and is asked again
                reason = error.message if isinstance(error, DiscoError) else f"internal error: {type(error).__name__}"
                self._readiness[name] = EndpointState(False, reason)
                await asyncio.sleep(RETRY_PERIOD)
            else:
                self._readiness[name] = EndpointState(True, "ready")
                await asyncio.sleep(WATCH_PERIOD)

    async def _trade(self, exchange: DeploymentHandle[Any]) -> None:
        """Learn what the other router replicas see, once in a while; whatever goes wrong there, this one serves on."""
        router, cursor = uuid.uuid4().hex, 0
        estimates, load = self._state.planner.estimates, self._state.load
        while True:
            await asyncio.sleep(TRADE_PERIOD)
            try:
                news = await exchange.trade.remote(router, cursor, estimates.drain(), load.own)
            except Exception as error:  # noqa: BLE001 - whatever Ray raises while the exchange is away
                logger.warning("the exchange of observations does not answer: %s", type(error).__name__)
                load.elsewhere = {}
            else:
                cursor, load.elsewhere = news.cursor, news.running
                estimates.merge(news.observations)


async def _publish(metrics: Metrics, sink: RaySink) -> None:
    """Ray does not ask for gauges, so it is told."""
    while True:
        metrics.publish(sink)
        await asyncio.sleep(PUBLISH_PERIOD)


async def effective_http_host() -> str | None:
    """The address on which Serve listens for HTTP, as its controller has it; None where it does not say."""
    controller = ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
    options = await controller.get_http_config.remote()
    host: str | None = options.host
    return host


def require_token(http_host: str | None) -> None:
    """Raise RuntimeError where a network can reach this Ray and Ray asks nobody for its token.

    Keys guard the HTTP API only. Ray's own ports, which listen on every interface, run whatever code is sent to them.
    """
    if not is_loopback(http_host) and not is_token_auth_enabled():
        raise RuntimeError(
            "Ray's authentication is off, so whoever reaches its ports can run code here; set RAY_AUTH_MODE=token on "
            "every node, or http_options.host to 127.0.0.1 on a machine of your own"
        )
