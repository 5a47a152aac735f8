"""Asking an endpoint what it is, again and again: that loads its engine, and tells when it is there, or why not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from serve_app.core.errors import DiscoError
from serve_app.streams import EndpointState

#: Seconds between two looks at an endpoint that does not answer yet, and at one that does.
RETRY_PERIOD: Final = 1.0
WATCH_PERIOD: Final = 10.0

STARTING: Final = EndpointState(False, "starting")
READY: Final = EndpointState(True, "ready")


async def watch(ask: Callable[[], Awaitable[object]], tell: Callable[[EndpointState], None]) -> None:
    """Never returns. ``ask`` raises where the endpoint is not ready."""
    while True:
        try:
            await ask()
        except Exception as error:  # noqa: BLE001 - whatever it is, the endpoint is not ready, and is asked again
            reason = error.message if isinstance(error, DiscoError) else f"internal error: {type(error).__name__}"
            tell(EndpointState(False, reason))
            await asyncio.sleep(RETRY_PERIOD)
        else:
            tell(READY)
            await asyncio.sleep(WATCH_PERIOD)
