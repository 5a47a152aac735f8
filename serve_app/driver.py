"""Carries out a session's commands over real endpoints, and turns what happens into its events.

One task per leg, one timer, one outbox. Everything runs on the event loop that created the driver, whose ``time()`` is
the session's clock; so a virtual-time loop drives it unchanged.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from serve_app.core.endpoint import Endpoint
from serve_app.core.errors import DiscoError, EndpointFault, EndpointUnavailable
from serve_app.core.legs import Leg, LegOutcome
from serve_app.core.model import EndpointId, GenerationRequest, Prompt, Receipt, Sampling
from serve_app.core.protocol import (
    Accepted,
    CancelStream,
    ChunkArrived,
    ClientLeft,
    Close,
    Command,
    Delivered,
    Emit,
    Event,
    Opened,
    StartStream,
    StreamFailed,
    Woke,
)
from serve_app.core.session import StreamSession
from serve_app.core.ticks import tick_before

#: Paced text goes out at the last tick at which its first token is not yet due within this share of the slack, with all
#: that is due within a slack from then on. Ticks come every quarter of a slack, so that is once per slack, and the
#: first token leaves at most three eighths of it ahead.
PACED_MARGIN = 0.125

#: Seconds for which the end of a stream waits for legs to stop. One that hangs stops by itself when it can.
PATIENCE = 5.0


class LegObserver(Protocol):
    """Told when legs start and end; what ``started`` returns travels with the request as its trace context."""

    def leg_started(self, leg: Leg) -> dict[str, str]: ...

    def leg_ended(self, leg: Leg) -> None: ...


class Watcher(Protocol):
    """Looks at the session after each event. While ``waiting``, it has something for whoever reads the stream."""

    @property
    def waiting(self) -> bool: ...

    def look(self, now: float) -> bool: ...


@dataclass(frozen=True, slots=True)
class StreamJob:
    """What every leg of one request has in common."""

    prompt: Prompt
    sampling: Sampling
    delivery: Literal["eager", "paced"] = "eager"


class StreamDriver:
    """Async iterator over ``Emit``; taking the next one means that the previous one was delivered.

    While ``watcher`` has something to tell, an empty one comes where there is no text to tell it with.
    Raises the stream's DiscoError after the text that came before it, and so it does with whatever the session itself
    raised. ``aclose`` stops every leg, whatever the state, and waits for them, though not for one that hangs.
    """

    def __init__(
        self,
        session: StreamSession,
        job: StreamJob,
        endpoints: Mapping[EndpointId, Endpoint],
        observer: LegObserver,
        watcher: Watcher | None = None,
    ) -> None:
        self.session = session
        self.closed: Close | None = None
        self._fault: Exception | None = None
        self._job = job
        self._endpoints = endpoints
        self._observer = observer
        self._watcher = watcher
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._observed: set[str] = set()
        #: What uvloop makes of an instant that is now cannot be asked when it is.
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0.0
        self._outbox: deque[Emit] = deque()
        self._changed = asyncio.Event()
        self._undelivered = 0

    def start(self) -> None:
        self._feed(Opened())

    async def started(self) -> None:
        """Wait for the first text, or for the end. Raises the error of a stream that ended before any text."""
        while not self._outbox:
            if self.closed is not None:
                self._raise_error(self.closed)
                return
            await self._change()

    def __aiter__(self) -> StreamDriver:
        return self

    async def __anext__(self) -> Emit:
        if self._undelivered:
            delivered, self._undelivered = self._undelivered, 0
            self._feed(Delivered(delivered))
        while True:
            wait = self._wait_for_due()
            if self._outbox and wait <= 0:
                emit = self._take()
                self._undelivered = emit.count
                return emit
            if self._watcher is not None and self._watcher.waiting:
                return Emit(self.session.buffer.delivered, 0, "", self.session.owner or "")
            if not self._outbox and self.closed is not None:
                self._raise_error(self.closed)
                raise StopAsyncIteration
            await self._change(wait if self._outbox else None)

    def _raise_error(self, closed: Close) -> None:
        if self._fault is not None:
            raise self._fault
        if closed.error is not None:
            raise closed.error

    async def aclose(self) -> None:
        if self.closed is None:
            self._feed(ClientLeft())
        # By now each leg was cancelled once. A second time would interrupt what it does to stop its endpoint.
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()), timeout=PATIENCE)

    # --- events in, commands out --------------------------------------------------------------------------------

    def _feed(self, event: Event) -> None:
        if self._fault is not None:
            return
        try:
            now = self._loop.time()
            for command in self.session.handle(event, now):
                self._carry_out(command)
            self._rearm()
            if self._watcher is not None and self._watcher.look(now):
                self._changed.set()
        except Exception as fault:  # noqa: BLE001 - nobody else would end the stream that it broke
            self._give_up(fault)

    def _give_up(self, fault: Exception) -> None:
        """Nothing that the session says can be trusted any more."""
        self._fault, self.closed = fault, Close()
        for leg in self.session.legs:
            if leg.live:
                leg.end(LegOutcome.CANCELLED, self._loop.time(), cut=True)
                self._carry_out(CancelStream(leg.attempt))
        if self._timer is not None:
            self._timer.cancel()
        self._changed.set()

    def _carry_out(self, command: Command) -> None:
        match command:
            case StartStream():
                leg = self.session.leg(command.attempt)
                request = self._request(command, self._observer.leg_started(leg))
                self._tasks[command.attempt] = asyncio.create_task(self._pump(leg, request), name=command.attempt)
            case CancelStream(attempt):
                # A leg that breaks off because of what it said itself sees that it is over, and can stop in peace.
                task = self._tasks.get(attempt)
                if task is not None and task is not asyncio.current_task():
                    task.cancel()
                self._observe_end(attempt)
            case Emit():
                self._outbox.append(command)
                self._changed.set()
            case Close():
                self.closed = command
                self._changed.set()

    def _request(self, command: StartStream, trace: dict[str, str]) -> GenerationRequest:
        sampling = replace(self._job.sampling, max_tokens=command.max_tokens)
        if command.handoff is not None and sampling.seed is not None:
            # The same seed again would repeat the draws that chose the stream's first tokens.
            sampling = replace(sampling, seed=(sampling.seed + command.handoff.next_index) % 2**31)
        return GenerationRequest(
            command.attempt, self._job.prompt, sampling, command.handoff, command.pace, command.park, trace
        )

    async def _pump(self, leg: Leg, request: GenerationRequest) -> None:
        try:
            async with aclosing(self._endpoints[leg.info.id].generate(request)) as stream:
                async for item in stream:
                    if isinstance(item, Receipt):
                        self._feed(Accepted(leg.attempt, item))
                    else:
                        self._feed(ChunkArrived(leg.attempt, item))
                        if item.finish is not None or not leg.live:
                            return
            self._feed(StreamFailed(leg.attempt, EndpointFault("the stream ended without a finish", leg.info.id)))
        except DiscoError as error:
            self._feed(StreamFailed(leg.attempt, error))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            gone = EndpointUnavailable(f"{leg.info.id} cancelled its own stream", leg.info.id)
            self._feed(StreamFailed(leg.attempt, gone))
        except Exception as error:  # noqa: BLE001 - whatever an endpoint raises is that endpoint's fault
            fault = EndpointFault(f"{leg.info.id} raised {type(error).__name__}", leg.info.id)
            self._feed(StreamFailed(leg.attempt, fault))
        finally:
            self._tasks.pop(leg.attempt, None)
            self._observe_end(leg.attempt)

    def _observe_end(self, attempt: str) -> None:
        leg = self.session.leg(attempt)
        if not leg.live and attempt not in self._observed:
            self._observed.add(attempt)
            self._observer.leg_ended(leg)

    # --- time ---------------------------------------------------------------------------------------------------

    def _rearm(self) -> None:
        """Keep a timer at or before the session's next instant; one that fires early only asks again."""
        due = self.session.wake_at
        if self._timer is not None and (due is None or self._timer_at > due):
            self._timer.cancel()
            self._timer = None
        if self._timer is None and due is not None:
            self._timer, self._timer_at = self._loop.call_at(due, self._woke), due

    def _woke(self) -> None:
        self._timer = None
        self._feed(Woke())

    async def _change(self, timeout: float | None = None) -> None:
        self._changed.clear()
        alarm = None if timeout is None else self._loop.call_later(timeout, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            if alarm is not None:
                alarm.cancel()

    # --- the outbox ---------------------------------------------------------------------------------------------

    def _wait_for_due(self) -> float:
        """Seconds until the outbox's first token should go out; not positive when it should go now."""
        due = self.session.buffer.due_at(self._outbox[0].index) if self._outbox else None
        if self._job.delivery == "eager" or due is None:
            return 0.0
        slack = self.session.config.slack
        return tick_before(due - PACED_MARGIN * slack, slack) - self._loop.time()

    def _take(self) -> Emit:
        """Everything that is ready to go and was written by the same endpoint, as one."""
        emit = self._outbox.popleft()
        horizon = self._loop.time() + (1 + PACED_MARGIN) * self.session.config.slack
        while self._outbox and self._outbox[0].endpoint == emit.endpoint:
            due = self.session.buffer.due_at(self._outbox[0].index)
            if self._job.delivery == "paced" and due is not None and due > horizon:
                break
            more = self._outbox.popleft()
            emit = Emit(emit.index, emit.count + more.count, emit.text + more.text, emit.endpoint)
        return emit
