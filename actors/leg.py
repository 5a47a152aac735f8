"""One running generation inside a replica: a pump pulls the engine, ``batches`` hands over what has to leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from actors.contract import StreamContract
from actors.pacing import clock_for
from serve_app.core.errors import EndpointFault
from serve_app.core.model import FinishReason, GenerationRequest, StreamItem, TokenChunk
from serve_app.core.ticks import tick_before

# Seconds: a timer may fire this early, and whoever waits for the rest of it would spin.
_TIMER_GRAIN = 1e-6


class Leg:
    """Keeps the promises of ``Pace``.

    An empty batch is a sign of life. It is given only while this leg itself rests, ahead of its reader; an engine that
    hangs is heard as silence, once the tokens it left behind have gone out.

    ``first_token``: when the engine gave it, in the loop's seconds. ``produced``: tokens so far.
    """

    def __init__(self, stream: AsyncGenerator[StreamItem, None], request: GenerationRequest, arrived: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._stream = stream
        self._pace = request.pace
        self._contract = StreamContract(request.handoff.next_index if request.handoff else 0)
        self._ready: list[StreamItem] = []
        self._wake = asyncio.Event()
        self._resting = False
        self.produced = 0
        self._left = 0
        self._largest = 1
        self._arrived = arrived
        self._left_at = self._loop.time()
        self.first_token: float | None = None
        self.stopping_since: float | None = None
        self.pump = asyncio.create_task(self._pump(), name=f"pump {request.attempt_id}")
        self.pump.add_done_callback(lambda _: self._wake.set())

    async def batches(self) -> AsyncGenerator[list[StreamItem], None]:
        """Everything that is ready travels together. Ends with the engine; raises what it raised."""
        try:
            while True:
                self._wake.clear()
                departure = self._departure()
                if departure is not None and departure <= self._loop.time() + _TIMER_GRAIN:
                    yield self._take()
                elif self._contract.finished or self.pump.done():
                    break
                else:
                    await self._wait(departure)
            if not self._contract.finished:
                if self.pump.cancelled():
                    raise EndpointFault("the engine gave up by itself")
                await self.pump
        finally:
            self.stopping_since = self._loop.time()
            if not self._contract.finished:
                self.pump.cancel()
            await asyncio.wait({self.pump})
            if not self.pump.cancelled():
                self.pump.exception()

    async def _pump(self) -> None:
        try:
            async for item in self._stream:
                self._accept(item)
                if self._contract.finished:
                    return
                if not await self._reader_catches_up():
                    self._accept(
                        TokenChunk(
                            index=self._contract.next_index,
                            text="",
                            count=0,
                            open_tokens=self._contract.open_tokens,
                            finish=FinishReason.PAUSED,
                        )
                    )
                    return
            self._contract.close()
        finally:
            await self._stream.aclose()

    def _accept(self, item: StreamItem) -> None:
        self._contract.check(item)
        if isinstance(item, TokenChunk) and item.count:
            self.produced += item.count
            self._largest = max(self._largest, item.count)
            if self.first_token is None:
                self.first_token = self._loop.time()
        # A batch that is being held leaves no earlier for having grown.
        if not self._ready or self._contract.finished:
            self._wake.set()
        self._ready.append(item)

    async def _reader_catches_up(self) -> bool:
        """Rest while one more chunk would be too far ahead. False: no telling when it will not be."""
        clock = clock_for(self._pace, self._arrived, self.first_token)
        if clock is None or self.first_token is None:
            return True
        wanted = min(self._largest, self._pace.ahead_limit)
        while clock.allowance(self.produced, self._loop.time()) < wanted:
            opens = clock.opens_at(self.produced, wanted)
            if opens is None:
                return False
            self._resting = True
            self._wake.set()
            try:
                await asyncio.sleep(opens - self._loop.time())
            finally:
                self._resting = False
        return True

    def _departure(self) -> float | None:
        """When the next batch has to leave; None: nothing to say."""
        life = self._left_at + self._pace.slack
        if not self._ready:
            return life if self._resting else None
        clock = clock_for(self._pace, self._arrived, self.first_token)
        if clock is None or self._left == 0 or self._contract.finished or self.pump.done():
            return self._loop.time()
        leave_by = clock.leave_by(self._left)
        return self._loop.time() if leave_by is None else tick_before(min(leave_by, life), self._pace.slack)

    def _take(self) -> list[StreamItem]:
        batch, self._ready = self._ready, []
        self._left = self.produced
        self._left_at = self._loop.time()
        return batch

    async def _wait(self, until: float | None) -> None:
        timer = None if until is None else self._loop.call_at(until, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            if timer is not None:
                timer.cancel()
