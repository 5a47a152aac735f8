"""DiscoRouter: the Serve deployment that holds the stream service and shows it over HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from ray.serve.handle import DeploymentHandle

from actors.handles import ServeEndpoint, expected_info
from serve_app.core.budget import TokenBudget
from serve_app.core.errors import DiscoError
from serve_app.core.model import EndpointId
from serve_app.ingress import HttpApp, build_http_app, effective_http_host
from serve_app.core.planner import Planner
from serve_app.priors import cost_model, planner_config, prior_profile
from serve_app.service import StreamService
from serve_app.settings import AppSettings, LiveSettings
from serve_app.state import LocalState
from serve_app.streams import EndpointState, Readiness
from serve_app.telemetry import Telemetry

logger = logging.getLogger(__name__)

#: Seconds between two looks at an endpoint that does not answer yet, and at one that does.
RETRY_PERIOD = 1.0
WATCH_PERIOD = 10.0


class DiscoRouter:
    """``reconfigure`` takes the YAML's ``user_config`` at any time; running streams keep what they started with."""

    def __init__(self, app: AppSettings, handles: Mapping[EndpointId, DeploymentHandle[Any]]) -> None:
        live = LiveSettings()
        self._app = app
        self._endpoints = {
            name: ServeEndpoint(handle, expected_info(name, app.endpoints[name])) for name, handle in handles.items()
        }
        planner = Planner(
            planner_config(live),
            [endpoint.info for endpoint in self._endpoints.values()],
            cost_model(app, live),
            {name: prior_profile(settings.engine) for name, settings in app.endpoints.items()},
        )
        self._state = LocalState(planner, TokenBudget(live.policy.budget))
        self._telemetry = Telemetry(app.telemetry, "disco-router")
        self.service = StreamService(self._endpoints, app, live, self._state, self._telemetry)
        self._readiness = {name: EndpointState(False, "starting") for name in self._endpoints}
        self._watchers = {asyncio.create_task(self._watch(name)) for name in self._endpoints}
        self._http: HttpApp | None = None

    def __serve_build_asgi_app__(self) -> HttpApp:
        self._http = build_http_app(self.service, self.readiness, self._app, effective_http_host())
        return self._http

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        live = LiveSettings.model_validate(user_config)
        live.check_against(self._app)
        self.service.live = live
        self._state.planner.reconfigure(planner_config(live), cost_model(self._app, live))
        self._state.budget.set_share(live.policy.budget)

    def readiness(self) -> Readiness:
        return Readiness(any(state.ready for state in self._readiness.values()), dict(self._readiness))

    async def _watch(self, name: EndpointId) -> None:
        """Keep asking one endpoint what it is: that loads its engine, and tells when it is there, or why not."""
        while True:
            try:
                await self._endpoints[name].describe()
            except DiscoError as error:
                self._readiness[name] = EndpointState(False, error.message)
                await asyncio.sleep(RETRY_PERIOD)
            else:
                self._readiness[name] = EndpointState(True, "ready")
                await asyncio.sleep(WATCH_PERIOD)
