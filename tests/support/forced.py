"""Streams over engines in this process, with a migration forced at a chosen token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace

from actors.engines.base import Engine
from serve_app.core.cost import CostModel, UnitCost
from serve_app.core.latency import LatencyProfile, LinearTtft
from serve_app.core.legs import Leg
from serve_app.core.migration import MigrationDecision, MigrationMode, Mover, StreamState, Verdict
from serve_app.core.model import (
    DispatchPlan,
    EndpointInfo,
    EndpointKind,
    GenerationRequest,
    Launch,
    Prompt,
    Sampling,
    StreamItem,
    TokenChunk,
)
from serve_app.core.protocol import SessionConfig
from serve_app.core.session import StreamSession
from serve_app.driver import StreamDriver, StreamJob


class EngineEndpoint:
    """An engine as an endpoint, without a replica in between.

    ``rest_after``: tokens after which it stands still, like a paced leg that is far enough ahead of its reader.
    """

    def __init__(self, name: str, kind: EndpointKind, engine: Engine) -> None:
        facts = engine.info
        self.info = EndpointInfo(
            name, kind, facts.model, facts.context_length, facts.vocabulary, facts.continues_by, can_park=False
        )
        self._engine = engine
        self.requests: list[GenerationRequest] = []
        self.rest_after: int | None = None

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[StreamItem, None]:
        self.requests.append(request)
        stream = self._engine.generate(request)
        try:
            async for item in stream:
                yield item
                if self.rest_after is not None and isinstance(item, TokenChunk) and item.index >= self.rest_after:
                    await asyncio.Event().wait()
        finally:
            await stream.aclose()


class ForcedMover(Mover):
    """Moves as soon as ``at`` tokens are accepted, whatever it costs; None: never.

    ``whole``: not before the text ends with a whole character, as every real move.
    """

    __slots__ = ("at", "whole")

    def __init__(self, mode: MigrationMode, at: int | None, *, whole: bool = False) -> None:
        profile = LatencyProfile(LinearTtft(0.0, 0.1), 1000.0, 50.0)
        free = CostModel({"source": UnitCost(0.0, 1.0), "target": UnitCost(0.0, 0.0)})
        super().__init__(mode, 0.0, free, lambda _: profile, lambda n, top: float(top - n), lambda _: False)
        object.__setattr__(self, "at", at)
        object.__setattr__(self, "whole", whole)

    def consider(
        self, source: EndpointInfo, target: EndpointInfo, state: StreamState, *, parked: float | None = None
    ) -> MigrationDecision:
        at: int | None = self.at  # type: ignore[attr-defined]
        whole: bool = self.whole  # type: ignore[attr-defined]
        ripe = at is not None and state.accepted >= at and not (whole and state.open_character)
        return MigrationDecision(Verdict.GO if ripe else Verdict.BUFFER, target.id)


@dataclass(frozen=True)
class Migrated:
    text: str
    tokens: int
    moved_at: int | None
    by_ids: bool
    session: StreamSession


class _Silent:
    def leg_started(self, leg: Leg) -> dict[str, str]:
        return {}

    def leg_ended(self, leg: Leg) -> None:
        return None


async def stream_with_cut(
    source: EngineEndpoint, target: EngineEndpoint, prompt: Prompt, sampling: Sampling, mode: MigrationMode, at: int
) -> Migrated:
    """Greedy from ``source``, handed over at token ``at``."""
    source.rest_after = at + 5
    try:
        return await stream_over([source, target], prompt, sampling, ForcedMover(mode, at))
    finally:
        source.rest_after = None


async def stream_over(
    endpoints: Sequence[EngineEndpoint], prompt: Prompt, sampling: Sampling, mover: ForcedMover
) -> Migrated:
    """One stream that starts at the first endpoint. The reader is slow, so no handoff is ever abandoned."""
    plan = DispatchPlan((Launch(endpoints[0].info.id),), "forced", "test")
    config = SessionConfig(sampling.max_tokens, prompt_tokens=1, rate=0.02, ahead_tokens=4096, idle_timeout=60.0)
    session = StreamSession("r", config, plan, [endpoint.info for endpoint in endpoints], mover)
    by_name = {endpoint.info.id: endpoint for endpoint in endpoints}
    driver = StreamDriver(session, StreamJob(prompt, sampling), by_name, _Silent())
    driver.start()
    try:
        text = "".join([emit.text async for emit in driver])
    finally:
        await driver.aclose()
    moves = [record for record in session.migrations if record.outcome == "completed"]
    handoffs = [leg.handoff for leg in session.legs if leg.handoff is not None]
    by_ids = all(handoff.packed_ids is not None for handoff in handoffs)
    return Migrated(text, session.buffer.accepted, moves[0].at_token if moves else None, by_ids, session)


async def texts_of(endpoint: EngineEndpoint, request: GenerationRequest) -> list[str]:
    """What the endpoint writes on its own, token by token."""
    return [item.text async for item in endpoint.generate(request) if isinstance(item, TokenChunk) and item.count]


def alone(prompt: Prompt, sampling: Sampling, name: str = "alone") -> GenerationRequest:
    return GenerationRequest(name, prompt, replace(sampling))
