"""A wrapper that gives a real engine's tokens the timing of a measured service or device."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final

import numpy as np

from actors.engines.base import Engine, EngineInfo
from actors.engines.profiles import CloudProfile, DeviceProfile, Profile, load_profile
from serve_app.core.model import (
    ChatPrompt,
    GenerationRequest,
    Prompt,
    Receipt,
    StreamItem,
    TextPrompt,
    TokenChunk,
    TokenPrompt,
)
from serve_app.engine_settings import ShapedEngineSettings

_AHEAD: Final = 4
"""Tokens the imitated endpoint generates while its reader does not take them; then it stands still."""

_BYTES_PER_TOKEN: Final = 4
"""For engines that cannot count a prompt: typical of English text."""


class Schedule:
    """When tokens are due: the first at ``first``, each further one ``gap`` seconds after the one before.

    Anchored to itself, not to deliveries, so that small delays do not add up. Only a reader who lags more than
    ``_AHEAD`` tokens moves it; that lag is not the engine's lateness.
    """

    def __init__(self, first: float, gap: float) -> None:
        self.due = first
        self._gap = gap
        self._lag = 0.0
        self._given: float | None = None

    def next(self, asked: float, tokens: int) -> float:
        """When a chunk of ``tokens`` that the reader waits for since ``asked`` is due."""
        if self._given is None:
            self.due += (tokens - 1) * self._gap
            return self.due
        self.due += tokens * self._gap
        lag = max(0.0, min(self._lag + asked - self._given, asked - self.due))
        excess = max(0.0, lag - _AHEAD * self._gap)
        self.due += excess
        self._lag = lag - excess
        return self.due

    def late(self, ready: float) -> float:
        """Seconds by which the chunk last asked for came too late from the engine, ``ready`` at that time."""
        # While the reader lags, the engine may only begin when asked, and has one gap for a token.
        patience = self._lag + self._gap if self._lag > 0 else 0.0
        return max(0.0, ready - self.due - patience)

    def given(self, now: float) -> None:
        """The chunk went to the reader."""
        self._given = now


@dataclass(frozen=True, slots=True)
class _Parked:
    started: float
    expires: float


class ShapedEngine:
    """Each token leaves at max(real, drawn); where the real engine is slower, the chunk says by how much.

    A cloud profile draws TTFT and TBT anew for each attempt, also for one that carries on a text. A device profile
    computes TTFT from the tokens it must prefill: intercept + (l + n - reused) / rate. The draws depend on the seed
    and the attempt's id alone.
    """

    def __init__(self, settings: ShapedEngineSettings, inner: Engine) -> None:
        self._seed = settings.seed
        self._profile: Profile = load_profile(settings.profile)
        self._inner = inner
        self._parked: dict[Prompt, _Parked] = {}

    @property
    def info(self) -> EngineInfo:
        """A service that is imitated keeps no prefill for anybody, whatever the engine behind it could do."""
        parks = self._inner.info.can_park and isinstance(self._profile, DeviceProfile)
        return replace(self._inner.info, imitates=self._profile.name, can_park=parks)

    async def start(self) -> None:
        await self._inner.start()

    async def close(self) -> None:
        await self._inner.close()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[StreamItem, None]:
        clock = asyncio.get_running_loop().time
        started = asked = clock()
        receipt: Receipt | None = None
        schedule: Schedule | None = None
        try:
            async with aclosing(self._inner.generate(request)) as inner:
                async for item in inner:
                    if isinstance(item, Receipt):
                        receipt = item
                        yield item
                    elif item.count == 0:
                        yield item
                    else:
                        ready = clock()
                        schedule = schedule or self._schedule(request, receipt, started)
                        yield await self._on_time(item, schedule, asked, ready)
                    asked = clock()
        finally:
            if request.park > 0 and schedule is None:
                self._remember_parked(request, started, clock())

    async def _on_time(self, chunk: TokenChunk, schedule: Schedule, asked: float, ready: float) -> TokenChunk:
        clock = asyncio.get_running_loop().time
        due = schedule.next(asked, chunk.count)
        late = schedule.late(ready)
        if due > ready:
            await asyncio.sleep(due - ready)
        schedule.given(clock())
        return replace(chunk, imitation_late=late) if late > 0 else chunk

    def _schedule(self, request: GenerationRequest, receipt: Receipt | None, started: float) -> Schedule:
        match self._profile:
            case CloudProfile() as cloud:
                digest = sha256(f"{self._seed}:{request.attempt_id}".encode()).digest()
                ttft, tbt = np.random.default_rng(int.from_bytes(digest[:8], "little")).random(2)
                return Schedule(started + cloud.ttft_at(ttft), cloud.tbt_at(tbt))
            case DeviceProfile() as device:
                tokens = self._to_prefill(request, receipt, device, started)
                return Schedule(started + device.ttft(tokens), 1 / device.decode_rate)

    def _to_prefill(
        self, request: GenerationRequest, receipt: Receipt | None, device: DeviceProfile, started: float
    ) -> float:
        counted = None if receipt is None else receipt.prompt_tokens
        tokens = _estimate(request.prompt) if counted is None else counted
        if request.handoff is not None:
            tokens += request.handoff.next_index
        done: float = 0 if receipt is None else receipt.reused
        parked = self._parked.pop(request.prompt, None) if done else None
        if parked is not None:
            # The real prefill was over long before the imitated one, which went on at the device's rate.
            done = min(done, max(0.0, started - parked.started - device.intercept) * device.prefill_rate)
        return max(0.0, tokens - done)

    def _remember_parked(self, request: GenerationRequest, started: float, now: float) -> None:
        self._parked = {prompt: parked for prompt, parked in self._parked.items() if parked.expires > now}
        self._parked[request.prompt] = _Parked(started, now + request.park)


def _estimate(prompt: Prompt) -> int:
    match prompt:
        case ChatPrompt(messages, prefix):
            size = sum(len(message.content.encode(errors="replace")) for message in messages) + len(prefix)
        case TextPrompt(text):
            size = len(text.encode(errors="replace"))
        case TokenPrompt(token_ids):
            return len(token_ids)
    return size // _BYTES_PER_TOKEN
