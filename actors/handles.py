"""ServeEndpoint: the ``Endpoint`` of the core over a Serve deployment's handle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextvars import Context
from dataclasses import replace
from functools import cached_property
from typing import Any

from ray.serve.handle import DeploymentHandle

from actors.batches import single_items
from actors.engines.base import EngineInfo
from actors.faults import failure_of
from actors.refusal import Refusal
from serve_app.core.errors import EndpointTimeout, EndpointUnavailable
from serve_app.core.model import EndpointId, EndpointInfo, GenerationRequest, StreamItem
from serve_app.engine_settings import ShapedEngineSettings
from serve_app.settings import EndpointSettings

#: Seconds for an answer to what an endpoint is.
DESCRIBE_TIMEOUT = 10.0

# Turns of the event loop after which a call that Serve had just assigned has reached its transport.
_ASSIGNMENT_TURNS = 3


def expected_info(endpoint: EndpointId, settings: EndpointSettings) -> EndpointInfo:
    """What the configuration alone says, until ``describe`` has asked the engine. The vocabulary is not known yet."""
    engine = settings.engine.engine if isinstance(settings.engine, ShapedEngineSettings) else settings.engine
    return EndpointInfo(
        id=endpoint,
        kind=settings.kind,
        model=engine.type,
        context_length=engine.context_length,
        slots=settings.slots,
        most_replicas=settings.placement.most_replicas,
        imitates=settings.engine.profile if isinstance(settings.engine, ShapedEngineSettings) else None,
        owners=frozenset(settings.owners),
    )


def described(info: EndpointInfo, engine: EngineInfo) -> EndpointInfo:
    """``info`` with what only the loaded engine knows.

    A prefill that one of several replicas keeps is worth nothing: the call that wants it may reach another.
    """
    return replace(
        info,
        model=engine.model,
        context_length=engine.context_length,
        vocabulary=engine.vocabulary,
        continues_by=engine.continues_by,
        counts_tokens=engine.counts_tokens,
        can_park=engine.can_park and info.most_replicas == 1,
        imitates=engine.imitates,
    )


def _unrelated(call: Callable[..., Any], *arguments: Any) -> Any:
    """Make a call that belongs to no request of Serve's.

    When a client leaves, Serve cancels the calls that its request has made before the router hears of it. To the
    session that would be an endpoint that gave up, and it would start another.
    """
    return Context().run(call, *arguments)


class ServeEndpoint:
    """Cancels its call explicitly whenever the stream is closed early, for nothing else reliably does."""

    def __init__(self, handle: DeploymentHandle[Any], info: EndpointInfo) -> None:
        self._info = info
        self._handle = handle
        self._describing: asyncio.Task[EngineInfo] | None = None

    # Options start a handle's router, which belongs to the event loop that runs at that moment: not in __init__.
    @cached_property
    def _generate(self) -> Any:
        # Batches hold plain values of importable classes: Ray's own pickler takes several times as long for the same.
        return self._handle.options(stream=True, method_name="generate", response_serialization="pickle")

    @cached_property
    def _describe(self) -> Any:
        return self._handle.options(method_name="describe")

    @property
    def info(self) -> EndpointInfo:
        return self._info

    async def describe(self, timeout: float = DESCRIBE_TIMEOUT) -> EndpointInfo:
        """Ask the engine what it is and remember it in ``info``.

        Raises ``EndpointTimeout`` after ``timeout`` seconds, but lets the question stand: the next call takes it up.
        """
        if self._describing is None:
            self._describing = asyncio.create_task(self._ask(), name=f"describe {self._info.id}")
        question = self._describing
        await asyncio.wait({question}, timeout=timeout)
        if not question.done():
            raise EndpointTimeout(f"no answer within {timeout:g} s; it may still be loading", self._info.id)
        if self._describing is question:
            self._describing = None
        if question.cancelled():
            raise EndpointUnavailable("the question was cancelled", self._info.id)
        self._info = described(self._info, question.result())
        return self._info

    def generate(self, request: GenerationRequest) -> AsyncGenerator[StreamItem, None]:
        return single_items(self._batches(request), request, self._info.id)

    async def _batches(self, request: GenerationRequest) -> AsyncGenerator[list[StreamItem], None]:
        response = _unrelated(self._generate.remote, request)
        # Until the first item is there, the call may be assigned in the very instant in which it is cancelled, and
        # Serve would forget to cancel it. So the reader of the first item is a task of its own that sees this through.
        first = asyncio.ensure_future(_next_batch(response))
        over = False
        try:
            await asyncio.wait({first})
            batch = first.result()
            while batch is not None:
                yield batch
                batch = await _next_batch(response)
            over = True
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise EndpointUnavailable("the call was cancelled on the endpoint's side", self._info.id) from None
        except Exception as error:  # noqa: BLE001 - every failure of Ray becomes one of ours
            over = True
            raise failure_of(error, self._info.id) from None
        finally:
            if not over:
                response.cancel()
            if not first.done():
                for _ in range(_ASSIGNMENT_TURNS):
                    await asyncio.sleep(0)
                first.cancel()
                await asyncio.wait({first})
            if not first.cancelled():
                first.exception()

    async def _ask(self) -> EngineInfo:
        try:
            answer: EngineInfo | Refusal = await _unrelated(self._describe.remote)
        except Exception as error:  # noqa: BLE001 - every failure of Ray becomes one of ours
            raise failure_of(error, self._info.id) from None
        if isinstance(answer, Refusal):
            raise answer.error
        return answer


async def _next_batch(response: Any) -> list[StreamItem] | None:
    """The next batch, or None at the end: a task cannot carry a StopAsyncIteration out. Raises what was refused."""
    try:
        batch: list[StreamItem] | Refusal = await response.__anext__()
    except StopAsyncIteration:
        return None
    if isinstance(batch, Refusal):
        raise batch.error
    return batch
