"""From a client's request to an open stream: estimate, budget, plan, session, driver; and back to what it taught us.

Plain asyncio over {EndpointId: Endpoint}; knows neither HTTP nor Ray.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from serve_app.core.breaker import health_of
from serve_app.core.buffer import TokenBuffer
from serve_app.core.charge import Charge
from serve_app.core.cost import CostModel
from serve_app.core.endpoint import Endpoint
from serve_app.core.errors import UnknownModel
from serve_app.core.estimates import PRIOR_PROMPT, Observation, Seen
from serve_app.core.legs import Leg, LegOutcome, LegReason
from serve_app.core.migration import MigrationMode, Mover
from serve_app.core.model import DispatchPlan, EndpointId, EndpointInfo, FinishReason
from serve_app.core.protocol import Close, SessionConfig
from serve_app.core.report import build_report, leg_report
from serve_app.core.session import StreamSession
from serve_app.core.tally import Tally
from serve_app.core.trail import Trail
from serve_app.core.watch import ENDLESS, Patience, Watch, patience_of
from serve_app.driver import StreamDriver, StreamJob
from serve_app.eligibility import NOBODY_JOINED, Joined, eligible_endpoints
from serve_app.priors import breaker_config, cost_model, planner_config
from serve_app.router_spans import Begun, RequestSpan
from serve_app.settings import AppSettings, LiveSettings
from serve_app.snapshot import build_snapshot
from serve_app.state import SharedState
from serve_app.streams import ClientRequest, Delta, Outcome, Readiness, Usage
from serve_app.telemetry import Telemetry, operation_of

logger = logging.getLogger(__name__)


class StreamService:
    """What all streams share may be reconfigured while they run; each stream keeps what it started with.

    ``joined``: those of ``endpoints`` that no configuration names.
    """

    def __init__(
        self,
        endpoints: Mapping[EndpointId, Endpoint],
        app: AppSettings,
        live: LiveSettings,
        state: SharedState,
        telemetry: Telemetry,
        joined: Joined = NOBODY_JOINED,
    ) -> None:
        self.live = live
        self._joined = joined
        self._endpoints = endpoints
        self._app = app
        self._state = state
        self._telemetry = telemetry
        self._random = random.Random(app.router.seed)
        self._tally = Tally()
        #: Those under way, the newest last.
        self._streams: dict[OpenStream, None] = {}

    def reconfigure(self, live: LiveSettings, costs: CostModel | None = None) -> None:
        """``live`` fits the application (``LiveSettings.check_against``). What was observed stays.

        ``costs``: None where they follow from the settings alone.
        """
        self.live = live
        self._state.planner.reconfigure(planner_config(live), costs or cost_model(self._app, live))
        self._state.breakers.reconfigure(breaker_config(live))
        self._state.budget.set_share(live.policy.budget)

    def models(self) -> Sequence[str]:
        return tuple(self._app.models)

    def buffers(self) -> Sequence[TokenBuffer]:
        """Those of the streams under way."""
        return [stream.session.buffer for stream in self._streams]

    def snapshot(self, readiness: Readiness) -> dict[str, Any]:
        """What goes on at this moment; see docs/page.md."""
        ready = {name: state.ready for name, state in readiness.endpoints.items()}
        endpoints = [
            (endpoint.info, ready.get(name, not self._joined.is_away(name)))
            for name, endpoint in self._endpoints.items()
            # A device that was removed has no price any more; it is kept until its last stream is over.
            if name in self._state.planner.costs.unit
        ]
        running = [(stream.model, stream.session) for stream in self._streams]
        now = asyncio.get_running_loop().time()
        return build_snapshot(self.live, self._state, self._tally, endpoints, running, now)

    def open(self, request: ClientRequest) -> OpenStream:
        """Dispatch the request and start its first legs. Must be closed. Raises DiscoError where nothing can start."""
        eligible = self._eligible(request)
        return self._launch(request, eligible)

    def _span(self, request: ClientRequest, now: float) -> RequestSpan:
        return RequestSpan(
            self._telemetry,
            request.trace,
            request.request_id,
            request.model,
            operation_of(request.prompt),
            now,
            key=request.grant.key,
            sampling=request.sampling,
        )

    def _eligible(self, request: ClientRequest) -> list[EndpointInfo]:
        if request.model not in self._app.models:
            known = ", ".join(self._app.models)
            raise UnknownModel(f"no model of that name is served here; known models: {known}", "model")
        configured = self._app.models[request.model].endpoints or tuple(self._app.endpoints)
        names = (*configured, *self._joined.serving(request.model))
        infos = [self._endpoints[name].info for name in names]
        return eligible_endpoints(request, infos, self._joined.is_away, owned=self._app.devices_have_owners)

    def _launch(self, request: ClientRequest, eligible: Sequence[EndpointInfo]) -> OpenStream:
        now = asyncio.get_running_loop().time()
        state, planner = self._state, self._state.planner
        estimated = self._estimate(request, eligible)
        charge = Charge(state.budget, planner, estimated, {info.kind for info in eligible})
        healthy = state.breakers.healthy([info.id for info in eligible], now)
        ranked = sorted(eligible, key=lambda info: info.id not in healthy)
        plan = planner.plan(
            estimated,
            ranked[: len(healthy)],
            now,
            self._random.random(),
            afford=charge.afford,
            share=state.budget.planned_share,
            queue=state.load.queue_seconds,
        )
        if avoided := tuple(info.id for info in ranked[len(healthy) :]):
            plan = replace(plan, reason=f"{plan.reason}, avoiding {', '.join(avoided)}", avoided=avoided)
        span = self._span(request, now)
        span.planned(plan, [info.id for info in eligible], now)
        session = StreamSession(
            request.request_id, self._config(request, estimated), plan, ranked, self._mover(request), self._watch()
        )
        trail = Trail(session, ranked) if request.events else None
        stream = OpenStream(self, request, session, span, charge, trail)
        job = StreamJob(request.prompt, request.sampling, request.delivery)
        stream.driver = StreamDriver(session, job, self._endpoints, stream, trail)
        self._streams[stream] = None
        stream.driver.start()
        return stream

    def _estimate(self, request: ClientRequest, eligible: Sequence[EndpointInfo]) -> int:
        """Tokens of the prompt; a guess where the estimate fails."""
        # A prompt longer than every context will be refused; until then it must not count for more than one that fits.
        longest = max(info.context_length for info in eligible)
        try:
            return min(longest, self._state.estimator(request.model).estimate(request.prompt))
        except Exception:  # noqa: BLE001 - a failed estimate must not fail a request; the counter tells
            self._state.planner.fallbacks += 1
            return min(longest, round(PRIOR_PROMPT))

    def _config(self, request: ClientRequest, prompt_tokens: int) -> SessionConfig:
        reader, limits, migration = self.live.reader, self.live.limits, self.live.migration
        return SessionConfig(
            max_tokens=request.sampling.max_tokens,
            prompt_tokens=prompt_tokens,
            stops=request.stop,
            rate=request.consumption_rate,
            ahead_tokens=reader.ahead_tokens,
            slack=reader.slack,
            hold=request.delivery == "paced",
            max_planned=migration.max_planned,
            max_rescues=migration.max_rescues,
            first_token_timeout=limits.first_token_seconds,
            idle_timeout=limits.idle_seconds,
            stream_timeout=limits.stream_seconds,
        )

    def _mover(self, request: ClientRequest) -> Mover:
        migration, planner = self.live.migration, self._state.planner
        allowed = request.migrate and migration.mode != "off"
        return Mover(
            mode=MigrationMode(migration.mode) if allowed else None,
            network=migration.network_seconds,
            costs=planner.costs,
            profile=planner.profile,
            expected_remaining=planner.expected_remaining,
            is_full=self._state.load.is_full,
        )

    def _watch(self) -> Watch:
        limits, state, clock = self.live.limits, self._state, asyncio.get_running_loop().time
        failing = Patience(limits.first_token_seconds, limits.idle_seconds)

        def patience(endpoint: EndpointId, tokens: int) -> Patience:
            try:
                usual, queue = state.planner.estimates.usual(endpoint, tokens), state.load.queue_seconds(endpoint)
                return patience_of(usual, limits.patience, queue, failing)
            except Exception:  # noqa: BLE001 - as above; the configured limits remain
                state.planner.fallbacks += 1
                return ENDLESS

        def is_sick(endpoint: EndpointId) -> bool:
            return self._joined.is_away(endpoint) or state.breakers.is_sick(endpoint, clock())

        return Watch(patience, is_sick)

    def count(self, session: StreamSession, report: Mapping[str, Any], costs: CostModel) -> None:
        """Take what became of a stream into the tally. Runs once per stream, when it is over."""
        self._tally.add(report, [self._endpoints[name].info for name in session.eligible], costs)

    def learn(self, request: ClientRequest, session: StreamSession, finish: FinishReason | None) -> None:
        """Let the estimates see what happened. Runs once per stream, when it is over."""
        observe = self._state.planner.estimates.observe
        for leg in session.legs:
            queued = leg.receipt.queued if leg.receipt else 0.0
            if leg.handoff is None and leg.ttft is not None:
                observe(Observation(Seen.FIRST_TOKEN, session.prompt_tokens, leg.ttft - queued, leg.info.id))
            elif leg.handoff is None and leg.ended is not None and _given_up(leg):
                waited = leg.ended - leg.started - queued
                observe(Observation(Seen.NO_TOKEN, session.prompt_tokens, waited, leg.info.id))
            if leg.tokens > 1:
                observe(Observation(Seen.SILENCE, leg.tokens, leg.silence, leg.info.id))
            if request.delivery == "eager":
                observe(Observation(Seen.DECODED, leg.decoded, leg.decode_seconds, leg.info.id))
        if session.winner is not None:
            observe(Observation(Seen.PROMPT, session.prompt_tokens))
            self._state.estimator(request.model).learn(request.prompt, session.prompt_tokens)
        if finish is not None and session.buffer.accepted:
            observe(Observation(Seen.ANSWER, session.buffer.accepted))


def _given_up(leg: Leg) -> bool:
    """One that was suspected, or a loser that the stream did not wait for: its TTFT is longer than it lived."""
    return leg.overdue or (leg.watched and leg.error is None)


class OpenStream:
    """One running stream, as HTTP sees it: an async iterator of Deltas. Also observes the legs, for their spans."""

    driver: StreamDriver

    def __init__(
        self,
        service: StreamService,
        request: ClientRequest,
        session: StreamSession,
        span: RequestSpan,
        charge: Charge,
        trail: Trail | None,
    ) -> None:
        self._service = service
        self._request = request
        self._session = session
        self._span = span
        self._charge = charge
        self._trail = trail
        self._costs = service._state.planner.costs
        self._notional = service.live.prices.notional
        self._over = False

    @property
    def session(self) -> StreamSession:
        return self._session

    @property
    def model(self) -> str:
        return self._request.model

    @property
    def plan(self) -> DispatchPlan:
        return self._session.plan

    @property
    def policy(self) -> str:
        return self._session.plan.policy

    async def started(self) -> None:
        """Return with the first text, or at the end of a stream without any; at once where there are events to tell.

        Raises what ended it before that.
        """
        if self._trail is None:
            await self.driver.started()
            # Return what the race did not need to the budget.
            self._charge.settle(self._session)

    def __aiter__(self) -> OpenStream:
        return self

    async def __anext__(self) -> Delta:
        emit = await anext(self.driver)
        if self._trail is None:
            return Delta(emit.index, emit.count, emit.text, emit.endpoint)
        if emit.index == 0 and emit.count:
            self._charge.settle(self._session)
        return Delta(emit.index, emit.count, emit.text, emit.endpoint, self._trail.take())

    @property
    def outcome(self) -> Outcome:
        session = self._session
        finish = self.driver.closed.finish if self.driver.closed else None
        word: Literal["stop", "length"] = "length" if finish is FinishReason.LENGTH else "stop"
        exact = session.winner is not None and session.winner.info.counts_tokens
        usage = Usage(session.prompt_tokens, session.buffer.accepted, exact)
        report = build_report(session, self._costs, notional=self._notional)
        if self._request.grant.key is not None:
            report["key"] = self._request.grant.key
        return Outcome(word, usage, report, session.winner.first_token if session.winner is not None else None)

    async def aclose(self) -> None:
        """Stop every leg, settle the budget, end the spans. Idempotent."""
        if self._over:
            return
        self._over = True
        try:
            await self.driver.aclose()
        finally:
            self._service._streams.pop(self, None)
            self._charge.close(self._session)
            closed, outcome = self.driver.closed or Close(), self.outcome
            self._service.count(self._session, outcome.report, self._costs)
            try:
                self._service.learn(self._request, self._session, closed.finish)
            except Exception as error:  # noqa: BLE001 - the answer is out; it must not fail afterwards
                logger.error("request %s taught nothing: %s", self._request.request_id, type(error).__name__)  # noqa: TRY400
            code = closed.error.code if closed.error else "ok" if closed.finish else "cancelled"
            session, now = self._session, asyncio.get_running_loop().time()
            verdicts = [(session.judged_at[target], decision) for target, decision in session.verdicts.items()]
            self._span.end(outcome, code, session.winner, verdicts, now)

    def leg_started(self, leg: Leg) -> dict[str, str]:
        state, session = self._service._state, self._session
        state.load.started(leg.info.id)
        state.breakers[leg.info.id].started(leg.attempt, leg.started)
        if leg.handoff is None:
            return self._span.leg_started(leg)
        source = next((other for other in reversed(session.legs) if other.used), None)
        decision = session.verdicts[leg.info.id] if leg.reason is LegReason.MIGRATION else None
        return self._span.leg_started(leg, Begun(session.migrations[-1], source, decision))

    def leg_ended(self, leg: Leg) -> None:
        if leg.error is not None:
            cause = leg.error.message
            logger.warning("request %s: %s failed: %s", self._request.request_id, leg.info.id, cause)
        state, now = self._service._state, asyncio.get_running_loop().time()
        replica = leg.receipt.replica if leg.receipt else ""
        state.load.ended(leg.info.id, now - leg.started, replica, failed=leg.outcome is LegOutcome.FAILED)
        state.breakers[leg.info.id].ended(leg.attempt, health_of(leg), leg.started, now)
        report = leg_report(leg, self._session, self._costs)
        self._span.leg_ended(leg, self._session.winner, report, now)
