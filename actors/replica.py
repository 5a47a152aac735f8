"""EndpointReplica: the class behind an endpoint's Serve deployment. It hosts one engine and admits to its slots."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial

from actors.engines.base import Engine, EngineInfo, TellsProgress
from actors.engines.factory import make_engine
from actors.leg import Leg
from actors.logs import join_serves_log
from actors.refusal import Refusal
from actors.slots import Slots
from serve_app.core.errors import DiscoError, EndpointError, EndpointFault, EndpointUnavailable
from serve_app.core.model import EndpointId, GenerationRequest, Receipt, StreamItem
from serve_app.engine_settings import EngineSettings
from serve_app.settings import EndpointSettings, TelemetrySettings
from serve_app.telemetry import Telemetry
from serve_app.worker_spans import EngineSpan

logger = logging.getLogger(__name__)

# Seconds an aborted generation may take to stop before Serve is told to replace the replica.
STUCK_AFTER = 30.0

# Seconds after which `describe` says how far a loading engine is, where the engine tells.
PATIENCE = 2.0


class EndpointReplica:
    """A slot belongs to a generation until the engine has really stopped, however its caller left.

    A prefill that an engine keeps parked holds no slot: an engine that lacks room for a new request drops it.
    The engine loads in the background. If that fails, the replica stays up to say why instead of dying in a loop.
    """

    def __init__(
        self,
        endpoint: EndpointId,
        settings: EndpointSettings,
        telemetry: TelemetrySettings | None = None,
        threads: int = 1,
        make: Callable[[EngineSettings, int, int], Engine] = make_engine,
    ) -> None:
        join_serves_log()
        self._endpoint = endpoint
        self._telemetry = Telemetry(telemetry or TelemetrySettings(), f"disco-endpoint-{endpoint}")
        self._make = partial(make, settings.engine, settings.slots, threads)
        self._slots = Slots(settings.slots, settings.queue)
        self._name = f"{socket.gethostname()}:{os.getpid()}"
        self._engine: Engine | None = None
        self._loading: Engine | None = None
        self._failure: str | None = None
        self._starting: asyncio.Task[None] | None = None
        self._legs: set[Leg] = set()

    async def describe(self) -> EngineInfo | Refusal:
        """Answers once the engine has loaded; a ``Refusal`` says how far an engine is that takes long.

        Raises ``EndpointUnavailable`` with the reason if it could not load.
        """
        await asyncio.wait({self._start()}, timeout=PATIENCE)
        if isinstance(self._loading, TellsProgress):
            return Refusal(EndpointUnavailable(self._loading.progress, self._endpoint))
        return (await self._started()).info

    async def check_health(self) -> None:
        """Called by Serve, the first time right after construction: begins loading. Raises to be replaced."""
        self._start()
        now = asyncio.get_running_loop().time()
        if any(leg.stopping_since is not None and now - leg.stopping_since > STUCK_AFTER for leg in self._legs):
            raise EndpointUnavailable("an aborted generation does not stop", self._endpoint)

    def __del__(self) -> None:
        """Serve calls it when the replica goes: the last spans are exported. One that never came up has none."""
        if hasattr(self, "_telemetry"):
            self._telemetry.shutdown()

    async def close(self) -> None:
        """Where somebody else than Serve lets it go, and goes on."""
        if self._engine is not None:
            await self._engine.close()
        await asyncio.to_thread(self._telemetry.shutdown)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[list[StreamItem] | Refusal, None]:
        """Batches of items in the order of ``Endpoint.generate``; an empty batch is a sign of life.

        Raises ``EndpointError`` only; any other error of this project comes as the last thing, a ``Refusal``.
        """
        loop = asyncio.get_running_loop()
        span = EngineSpan(self._telemetry, request, self._endpoint, loop.time())
        code = None
        try:
            async with aclosing(self._admitted(request, span)) as batches:
                async for batch in batches:
                    yield batch
        except DiscoError as error:
            code = error.code
            if isinstance(error, EndpointError):
                raise
            yield Refusal(error)
        finally:
            span.end(code, loop.time())

    async def _admitted(self, request: GenerationRequest, span: EngineSpan) -> AsyncGenerator[list[StreamItem], None]:
        loop = asyncio.get_running_loop()
        arrived = loop.time()
        granted = await self._slots.acquire()
        leg = Leg(self._items(request, arrived, span), request, arrived)
        self._legs.add(leg)

        def stopped(_: asyncio.Task[None]) -> None:
            self._legs.discard(leg)
            self._slots.release(granted)

        leg.pump.add_done_callback(stopped)
        try:
            async with aclosing(leg.batches()) as batches:
                async for batch in batches:
                    yield batch
        except DiscoError as error:
            raise self._attributed(error) from None
        except Exception as error:  # noqa: BLE001
            # The text of a foreign exception may quote the prompt.
            raise EndpointFault(f"the engine raised {type(error).__name__}", self._endpoint) from None
        finally:
            span.first_token, span.tokens = leg.first_token, leg.produced

    async def _items(
        self, request: GenerationRequest, arrived: float, span: EngineSpan
    ) -> AsyncGenerator[StreamItem, None]:
        engine = await self._started()
        began = asyncio.get_running_loop().time()
        span.engine_began(engine.info.model, began)
        async with aclosing(engine.generate(request)) as items:
            async for item in items:
                if isinstance(item, Receipt):
                    span.receipt(item)
                    yield dataclasses.replace(item, queued=began - arrived, replica=self._name)
                else:
                    yield item

    def _start(self) -> asyncio.Task[None]:
        if self._starting is None:
            self._starting = asyncio.create_task(self._load_engine(), name=f"load {self._endpoint}")
        return self._starting

    async def _started(self) -> Engine:
        # Shielded: a caller who leaves must not stop the engine from loading for the others.
        await asyncio.shield(self._start())
        if self._failure is not None:
            raise EndpointUnavailable(self._failure, self._endpoint)
        assert self._engine is not None
        return self._engine

    async def _load_engine(self) -> None:
        try:
            engine = self._loading = self._make()
            await engine.start()
        except DiscoError as error:
            self._failure = error.message
        except Exception as error:  # noqa: BLE001 - whatever stops an engine from loading is reported by `describe`
            self._failure = f"the engine could not start: {type(error).__name__}: {error}"
        else:
            self._engine = engine
        finally:
            self._loading = None
        if self._failure is not None:
            logger.error("%s cannot serve: %s", self._endpoint, self._failure)

    def _attributed(self, error: DiscoError) -> DiscoError:
        if isinstance(error, EndpointError) and not error.endpoint:
            return type(error)(error.message, self._endpoint)
        return error
