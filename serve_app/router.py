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

from actors.handles import DESCRIBE_TIMEOUT, ServeEndpoint, expected_info
from actors.labels import missing_node
from actors.logs import join_serves_log
from serve_app.auth import is_loopback
from serve_app.core.endpoint import Endpoint
from serve_app.core.errors import EndpointTimeout, EndpointUnavailable, Unsupported
from serve_app.core.exchange import News
from serve_app.core.model import EndpointId
from serve_app.fleet import Fleet, FleetNews
from serve_app.gauges import watch_buffers, watch_state
from serve_app.hosting import DeviceHost
from serve_app.ingress import Surface, build_http_app
from serve_app.keys import configured_keys
from serve_app.live_policy import policy_of, retuned
from serve_app.metrics import Metrics
from serve_app.priors import initial_state
from serve_app.ray_metrics import RaySink
from serve_app.service import StreamService
from serve_app.settings import AppSettings, LiveSettings
from serve_app.streams import ClientRequest, EndpointState, Readiness, TextStream
from serve_app.telemetry import Telemetry
from serve_app.watching import STARTING, watch
from serve_app.wording import explain

#: Seconds between two exchanges with the other router replicas.
TRADE_PERIOD = 1.0

#: Seconds between two readings of the gauges for Ray's metrics, which leave their process every ten.
PUBLISH_PERIOD = 5.0

#: Seconds that a router which starts waits for what the others know of registered devices.
FIRST_COMPARISON = 10.0

#: Seconds for an endpoint to say what it is before somebody looks whether any node could host it.
PATIENCE = 3.0

logger = logging.getLogger(__name__)


class DiscoRouter:
    """``reconfigure`` takes the YAML's ``user_config`` at any time; running streams keep what they started with."""

    def __init__(
        self,
        app: AppSettings,
        handles: Mapping[EndpointId, DeploymentHandle[Any]],
        exchange: DeploymentHandle[Any] | None = None,
    ) -> None:
        join_serves_log()
        live = LiveSettings()
        self._app = app
        configured = {
            name: ServeEndpoint(handle, expected_info(name, app.endpoints[name])) for name, handle in handles.items()
        }
        self._endpoints: dict[EndpointId, Endpoint] = {**configured}
        self._state = initial_state(app, live, [endpoint.info for endpoint in configured.values()])
        self._telemetry = Telemetry(app.telemetry, "disco-router")
        self._name = uuid.uuid4().hex
        self._exchange = exchange
        # Keys matter to those alone who register devices.
        self._fleet = Fleet(app, configured_keys(app) if app.devices.allow else {}, self._name)
        self._devices = DeviceHost(self._fleet, app, lambda: self._service.live, self._endpoints, self._state)
        self._service = StreamService(self._endpoints, app, live, self._state, self._telemetry, self._devices)
        self._readiness = dict.fromkeys(configured, STARTING)
        self._tasks = {asyncio.create_task(self._watch(endpoint)) for endpoint in configured.values()}
        self._tasks.add(asyncio.create_task(self._keep_step()))
        self._http_host: str | None = None
        self._configured = False

    def __serve_build_asgi_app__(self) -> Starlette:
        """Called by Serve after the constructor."""
        metrics = Metrics()
        if self._app.telemetry.ray_metrics:
            sink = RaySink()
            metrics.also_to(sink)
            self._tasks.add(asyncio.create_task(_publish(metrics, sink)))
        watch_state(metrics, self._state)
        watch_buffers(metrics, self._service.buffers)
        self._surface = Surface(
            self,
            self._app,
            lambda: self._service.live,
            lambda: self._http_host,
            self._telemetry,
            metrics,
            devices=self._devices,
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
        if not self._configured and self._exchange is not None:
            # Before the first request: until it knows of them, nobody has devices of its own.
            await self._compare(self._exchange, FIRST_COMPARISON)
        self._configured = True
        self._apply(live)

    def _apply(self, live: LiveSettings) -> None:
        self._service.reconfigure(live, self._devices.costs(live))
        self._devices.refresh()

    def retune(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Until the next ``user_config`` is deployed, or this replica ends. Running streams keep what they have."""
        if self._app.router.replicas > 1:
            raise Unsupported(
                "the policy of one router replica would differ from the others'; deploy a changed user_config"
            )
        self._apply(retuned(self._service.live, changes))
        return policy_of(self._service.live)

    def snapshot(self) -> dict[str, Any]:
        which = {"replica": self._name, "replicas": self._app.router.replicas}
        return which | self._service.snapshot(self.readiness())

    def readiness(self) -> Readiness:
        return Readiness(any(state.ready for state in self._readiness.values()), dict(self._readiness))

    async def _watch(self, endpoint: ServeEndpoint) -> None:
        name = endpoint.info.id
        selector = self._app.endpoints[name].placement.label_selector

        async def ask() -> None:
            try:
                await endpoint.describe(PATIENCE if selector else DESCRIBE_TIMEOUT)
            except EndpointTimeout as late:
                raise EndpointUnavailable(await missing_node(selector) or late.message, name) from None

        def tell(state: EndpointState) -> None:
            self._readiness[name] = state

        await watch(ask, tell)

    async def _keep_step(self) -> None:
        """With the other router replicas and with devices that come and go; whatever goes wrong, this one serves on."""
        cursor = 0
        while True:
            await asyncio.sleep(TRADE_PERIOD)
            if self._exchange is not None:
                cursor = await self._trade(self._exchange, cursor)
                await self._compare(self._exchange, TRADE_PERIOD)
            try:
                self._devices.refresh()
            except Exception:  # the next turn may go better, and others are not to suffer for one device
                logger.exception("keeping step with the devices failed")

    async def _trade(self, exchange: DeploymentHandle[Any], cursor: int) -> int:
        """Learn what the other router replicas saw."""
        estimates, load = self._state.planner.estimates, self._state.load
        try:
            news: News = await exchange.trade.remote(self._name, cursor, estimates.drain(), load.own)
        except Exception as error:  # noqa: BLE001 - whatever Ray raises while the exchange is away
            logger.warning("the exchange of observations does not answer: %s", type(error).__name__)
            load.elsewhere = {}
            return cursor
        load.elsewhere = news.running
        estimates.merge(news.observations)
        return news.cursor

    async def _compare(self, exchange: DeploymentHandle[Any], timeout: float) -> None:
        """Learn of the devices that joined at other router replicas, or before this one started."""
        try:
            async with asyncio.timeout(timeout):
                news: FleetNews = await exchange.compare.remote(self._fleet.tell())
        except Exception as error:  # noqa: BLE001 - as above
            logger.warning("the exchange of devices does not answer: %s", type(error).__name__)
        else:
            self._fleet.merge(news)


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
