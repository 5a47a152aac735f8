"""/disco/devices: registration by the operator, heartbeats by the devices."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serve_app.access_settings import Scope
from serve_app.body import read_body
from serve_app.callers import Caller
from serve_app.core.errors import AccessDenied
from serve_app.core.model import EndpointId
from serve_app.devices import DeviceRegistration, DeviceReport
from serve_app.responses import Json
from serve_app.routes import route

Guard = Callable[[Request, Scope], Caller]
ReadBody = Callable[[Request], Awaitable[bytes]]

_A_REGISTRATION: Final = (
    '{"name": "phone", "base_url": "http://192.168.1.20:8080/v1", "model": "...", "owners": ["alice"]}'
)
_A_REPORT: Final = '{"battery": 0.8, "charging": false}'


class Devices(Protocol):
    """Raises DiscoError for what cannot be."""

    async def register(self, registration: DeviceRegistration) -> str: ...

    def remove(self, name: EndpointId) -> None: ...

    def hear(self, name: EndpointId, report: DeviceReport) -> None: ...

    def recognises(self, name: EndpointId, authorization: Sequence[str]) -> bool: ...

    def listing(self) -> list[dict[str, Any]]: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class DeviceHandlers:
    """One method per route. ``guard`` raises AccessDenied, ``body`` InvalidRequest."""

    devices: Devices
    guard: Guard
    body: ReadBody

    async def listing(self, request: Request) -> Response:
        self.guard(request, "operator")
        return Json({"devices": self.devices.listing()})

    async def register(self, request: Request) -> Response:
        self.guard(request, "operator")
        registration = read_body(DeviceRegistration, await self.body(request), _A_REGISTRATION)
        token = await self.devices.register(registration)
        return Json({"name": registration.name, "token": token}, 201)

    async def remove(self, request: Request) -> Response:
        self.guard(request, "operator")
        self.devices.remove(request.path_params["name"])
        return Response(status_code=204)

    async def report(self, request: Request) -> Response:
        name = request.path_params["name"]
        self._check_reporter(request, name)
        self.devices.hear(name, read_body(DeviceReport, await self.body(request), _A_REPORT))
        return Response(status_code=204)

    def _check_reporter(self, request: Request, name: EndpointId) -> None:
        """The device's own token, or a key of the configuration that may report for it."""
        if self.devices.recognises(name, request.headers.getlist("authorization")):
            return
        grant = self.guard(request, "device").grant
        if grant.key is not None and name not in grant.endpoints:
            raise AccessDenied("this key reports for other devices; give it this name under `endpoints`")


def device_routes(devices: Devices, guard: Guard, body: ReadBody) -> list[Route]:
    handlers = DeviceHandlers(devices, guard, body)
    return [
        route("/disco/devices", handlers.listing, ["GET"]),
        route("/disco/devices", handlers.register, ["POST"]),
        route("/disco/devices/{name}", handlers.remove, ["DELETE"]),
        route("/disco/devices/{name}/report", handlers.report, ["POST"]),
    ]
