"""Registered devices as endpoints of this router: it talks to their servers itself, without a deployment for each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import SecretStr

from actors.engines.base import Engine
from actors.engines.openai_http import OpenAIHttpEngine
from actors.handles import expected_info
from actors.hosted import HostedEndpoint
from actors.replica import EndpointReplica
from serve_app.core.cost import CostModel
from serve_app.core.endpoint import Endpoint
from serve_app.core.lww import REMEMBERED, Stamp
from serve_app.core.model import EndpointId
from serve_app.devices import Device, DeviceRegistration, DeviceReport
from serve_app.engine_settings import EngineSettings, OpenAIHttpEngineSettings
from serve_app.fleet import Fleet
from serve_app.priors import SERVER, believed, capacity, cost_model
from serve_app.settings import AppSettings, LiveSettings
from serve_app.state import SharedState
from serve_app.streams import EndpointState
from serve_app.watching import STARTING, watch


def _engine(key: SecretStr | None, settings: EngineSettings, _slots: int, _threads: int) -> Engine:
    assert isinstance(settings, OpenAIHttpEngineSettings)
    return OpenAIHttpEngine(settings, key=key)


@dataclass(slots=True)
class _Hosted:
    device: Device
    endpoint: HostedEndpoint
    state: EndpointState = STARTING
    watching: asyncio.Task[None] | None = None

    async def close(self) -> None:
        if self.watching is not None:
            self.watching.cancel()
        await self.endpoint.close()


class DeviceHost:
    """Keeps ``endpoints`` and ``state`` in step with the fleet, whenever ``refresh`` is called.

    ``endpoints`` is shared with the service. What belongs to a removed device stays there until no stream can ask for
    it any more.
    """

    def __init__(
        self,
        fleet: Fleet,
        app: AppSettings,
        live: Callable[[], LiveSettings],
        endpoints: dict[EndpointId, Endpoint],
        state: SharedState,
    ) -> None:
        self._fleet = fleet
        self._app = app
        self._live = live
        self._endpoints = endpoints
        self._state = state
        self._hosted: dict[EndpointId, _Hosted] = {}
        self._forget_at: dict[EndpointId, float] = {}
        self._counted: dict[EndpointId, Stamp] = {}
        self._closing: set[asyncio.Task[None]] = set()

    # --- what the service asks ------------------------------------------------------------------------------------

    def serving(self, model: str) -> Sequence[EndpointId]:
        open_to_all = not self._app.models[model].endpoints
        return [
            name
            for name, hosted in self._hosted.items()
            if model in hosted.device.registration.serves or (open_to_all and not hosted.device.registration.serves)
        ]

    def is_away(self, endpoint: EndpointId) -> bool:
        """A registered device that is silent or was removed, or whose server has not answered yet."""
        hosted = self._hosted.get(endpoint)
        if hosted is None:
            return endpoint in self._forget_at
        return not hosted.state.ready or self._fleet.is_silent(endpoint)

    def costs(self, live: LiveSettings) -> CostModel:
        joined = {name: hosted.device.registration.prices for name, hosted in self._hosted.items()}
        return cost_model(self._app, live, joined, self._fleet.states())

    # --- what the operator and the devices ask --------------------------------------------------------------------

    async def register(self, registration: DeviceRegistration) -> str:
        token = await self._fleet.register(registration)
        self.refresh()
        return token

    def remove(self, name: EndpointId) -> None:
        self._fleet.remove(name)
        self.refresh()

    def hear(self, name: EndpointId, report: DeviceReport) -> None:
        self._fleet.hear(name, report)
        self.refresh()

    def recognises(self, name: EndpointId, authorization: Sequence[str]) -> bool:
        return self._fleet.recognises(name, authorization)

    def listing(self) -> list[dict[str, Any]]:
        return [self._entry(name, hosted) for name, hosted in self._hosted.items()]

    def _entry(self, name: EndpointId, hosted: _Hosted) -> dict[str, Any]:
        registration, report = hosted.device.registration, self._fleet.report(name)
        silent = self._fleet.silent_seconds(name)
        ready, reason = hosted.state.ready, hosted.state.reason
        if ready and self._fleet.is_silent(name):
            ready, reason = False, f"away: not heard of for {silent:.0f} s"
        said = None if report is None or report.value is None else report.value.model_dump(exclude_none=True)
        return {
            "name": name,
            "ready": ready,
            "reason": reason,
            "base_url": registration.base_url,
            "address": hosted.device.address,
            "model": registration.model,
            "owners": list(registration.owners),
            "silent_seconds": round(silent, 1),
            "report": said,
        }

    # --- keeping step -----------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Whatever has changed in the fleet, in what devices say, or merely by time."""
        devices, now = self._fleet.devices, asyncio.get_running_loop().time()
        for name in [name for name, hosted in self._hosted.items() if devices.get(name) != hosted.device]:
            self._dismiss(name, now)
        for name, device in devices.items():
            if name not in self._hosted:
                self._admit(name, device)
        for name in [name for name, due in self._forget_at.items() if now >= due]:
            self._forget(name)
        self._count_loads()
        self._reprice()

    async def close(self) -> None:
        """Every connection to a device ends."""
        await asyncio.gather(*(hosted.close() for hosted in self._hosted.values()), *self._closing)
        self._hosted.clear()

    def _admit(self, name: EndpointId, device: Device) -> None:
        registration, settings = device.registration, device.settings()
        info = expected_info(name, settings)
        replica = EndpointReplica(name, settings, self._app.telemetry, make=partial(_engine, registration.api_key))
        hosted = _Hosted(device, HostedEndpoint(info, replica))
        profile = registration.believed()
        self._state.planner.estimates.add(name, SERVER if profile is None else believed(profile))
        self._state.load.add(name, capacity(settings))
        self._endpoints[name] = hosted.endpoint
        self._hosted[name] = hosted
        self._forget_at.pop(name, None)

        def tell(state: EndpointState) -> None:
            hosted.state = state

        hosted.watching = asyncio.create_task(watch(hosted.endpoint.describe, tell), name=f"watch {name}")

    def _dismiss(self, name: EndpointId, now: float) -> None:
        closing = asyncio.create_task(self._hosted.pop(name).close(), name=f"close {name}")
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        # A stream that began just now may ask about it for as long as it lives.
        self._forget_at[name] = now + max(REMEMBERED, 2 * self._live().limits.stream_seconds)

    def _forget(self, name: EndpointId) -> None:
        del self._forget_at[name], self._endpoints[name]
        self._state.planner.estimates.forget(name)
        self._state.load.forget(name)
        self._counted.pop(name, None)

    def _count_loads(self) -> None:
        """Each report is held against what runs when it comes; an old one says nothing."""
        load = self._state.load
        for name in (*self._app.endpoints, *self._hosted):
            word = self._fleet.report(name)
            if word is None or word.value is None or word.value.load is None:
                load.foreign.pop(name, None)
            elif self._counted.get(name) != word.stamp:
                self._counted[name] = word.stamp
                load.report(name, word.value.load)

    def _reprice(self) -> None:
        infos = [self._endpoints[name].info for name in (*self._app.endpoints, *self._hosted)]
        self._state.planner.adopt(infos, self.costs(self._live()))
