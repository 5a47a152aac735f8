"""An application's endpoints by their Serve handles, from this process instead of the router's."""

from __future__ import annotations

import asyncio
import logging
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import uvloop

from benchmarks.stack import free_ports, write_configuration
from serve_app.cli import ready
from serve_app.cli.configfile import load
from serve_app.cli.launch import running
from serve_app.cli.signals import stop_by_signal
from serve_app.core.endpoint import Endpoint
from serve_app.core.model import EndpointId
from serve_app.settings import AppSettings, LiveSettings

T = TypeVar("T")

_START_LIMIT: Final = 120.0


def with_endpoints(
    app: AppSettings, live: LiveSettings, work: Callable[[Mapping[EndpointId, Endpoint]], Awaitable[T]]
) -> T:
    """Start the application, do the work once its endpoints are known, and end it. Call ``launch.prepare`` before."""
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "direct.yaml"
        write_configuration(path, port, app, live)
        configuration = load(str(path))

    async def known() -> T:
        # They import Ray, whose switches have to be set before.
        from actors.handles import ServeEndpoint, expected_info

        infos = {name: expected_info(name, settings) for name, settings in app.endpoints.items()}
        endpoints = {name: ServeEndpoint(handle(name), info) for name, info in infos.items()}
        for endpoint in endpoints.values():
            await endpoint.describe(_START_LIMIT)
        return await work(endpoints)

    # Serve's handles live on the loop, so it has to outlive them.
    with stop_by_signal(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, running(configuration):
        _wait_until_ready(port)
        result = runner.run(known())
        # From here on the loop stands still, of which Serve complains.
        logging.getLogger("ray.serve").setLevel(logging.CRITICAL)
    return result


def handle(endpoint: EndpointId) -> Any:
    from ray import serve

    return serve.get_deployment_handle(f"endpoint-{endpoint}", "disco")


def _wait_until_ready(port: int) -> None:
    give_up = time.monotonic() + _START_LIMIT
    while (state := ready.ask(f"http://127.0.0.1:{port}")) is None or state.waiting or not state.warm:
        if time.monotonic() > give_up:
            raise TimeoutError("the application did not become ready")
        threading.Event().wait(0.1)
