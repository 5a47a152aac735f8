"""The HTTP surface over a scripted service, for the documents' commands."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from serve_app.devices import DeviceRegistration, DeviceReport
from serve_app.ingress import Surface
from tests.cli.test_top import LIVE
from tests.http.fakes import FakeService, make_surface, saying
from tests.support.local_http import http_thread


class Looked(FakeService):
    def snapshot(self) -> dict[str, Any]:
        return LIVE


class Willing:
    """Takes every device that is described as one must be."""

    async def register(self, registration: DeviceRegistration) -> str:
        return f"token of {registration.name}"

    def remove(self, name: str) -> None:
        pass

    def hear(self, name: str, report: DeviceReport) -> None:
        pass

    def recognises(self, name: str, authorization: Sequence[str]) -> bool:
        return True

    def listing(self) -> list[dict[str, Any]]:
        return []

    async def close(self) -> None:
        pass


def _surface() -> Surface:
    surface = make_surface(Looked(saying("Hello", " there")))
    surface.devices = Willing()
    return surface


def answering() -> AbstractContextManager[str]:
    """The URL of a service that answers everything with two words."""
    return http_thread(_surface)
