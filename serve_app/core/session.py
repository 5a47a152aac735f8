"""The state machine of one text stream: events in, commands out. No clock, no I/O, no randomness.

Plain dispatch, race and hedge are one plan of launches. Planned migration, rescue after a failure and resuming a paused
source are one mechanism: a leg that starts with a Handoff and owns the stream from its first token on.

    PREFILL   no token yet; one or more legs race, others may still be due
    DECODE    one leg owns the stream
    HANDOFF   a target prefills; in overlap the source runs on as a standby, otherwise nobody owns the stream
    PAUSED    the reader is too far behind; nothing runs until it catches up
    CLOSED    over
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import assert_never

from serve_app.core.buffer import OutOfOrder, Release, TokenBuffer
from serve_app.core.candidates import Candidates
from serve_app.core.deadlines import failed_at, silence, suspected_at
from serve_app.core.errors import (
    DiscoError,
    EndpointFault,
    EndpointTimeout,
    InvalidRequest,
    PromptTooLong,
    Unsupported,
)
from serve_app.core.legs import Leg, LegOutcome, LegReason, MigrationRecord, first_cause
from serve_app.core.migration import MigrationDecision, MigrationMode, Mover, StreamState, Verdict
from serve_app.core.model import (
    AttemptId,
    ContinuesBy,
    DispatchPlan,
    EndpointId,
    EndpointInfo,
    EndpointKind,
    FinishReason,
    Handoff,
    Launch,
    TokenChunk,
)
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
    Phase,
    SessionConfig,
    StartStream,
    StreamFailed,
    Woke,
)
from serve_app.core.watch import UNWATCHED, Watch

#: Seconds by which a standby source steps in before the reader would miss a token: timers fire a little late.
DRY_MARGIN = 0.02


class StreamSession:
    """``eligible``: endpoints this request may use, best first; no other one is ever started."""

    def __init__(
        self,
        request_id: str,
        config: SessionConfig,
        plan: DispatchPlan,
        eligible: Sequence[EndpointInfo],
        mover: Mover,
        watch: Watch = UNWATCHED,
    ) -> None:
        self.request_id = request_id
        self.config = config
        self.plan = plan
        self.buffer = TokenBuffer(config.rate, config.stops)
        self.phase = Phase.PREFILL
        self.legs: list[Leg] = []
        self._attempts: dict[AttemptId, Leg] = {}
        self.migrations: list[MigrationRecord] = []
        self.verdicts: dict[EndpointId, MigrationDecision] = {}
        self.judged_at: dict[EndpointId, float] = {}
        self.winner: Leg | None = None
        self.opened_at = 0.0
        self.closed_at: float | None = None
        park = config.max_planned > 0 and config.rate is not None
        self._candidates = Candidates(eligible, mover, park=park, watch=watch)
        self._mover = mover
        self._watch = watch
        self._pending: list[Launch] = sorted(plan.launches, key=lambda launch: launch.delay)
        self._owner: Leg | None = None
        self._target: Leg | None = None
        #: What a standby source wrote. Nobody may see it unless the handoff is abandoned.
        self._surplus: list[TokenChunk] = []
        self._planned = 0
        self._rescues = 0
        self._first_error: DiscoError | None = None
        #: The leg whose whole answer was no token, and how that ended, while others may still do better.
        self._empty: tuple[Leg, FinishReason] | None = None
        self._commands: list[Command] = []

    # --- what others may ask ------------------------------------------------------------------------------------

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt: the winner's count once known, the estimate before."""
        if self.winner is not None and self.winner.receipt and self.winner.receipt.prompt_tokens is not None:
            return self.winner.receipt.prompt_tokens
        return self.config.prompt_tokens

    @property
    def eligible(self) -> tuple[EndpointId, ...]:
        return tuple(self._candidates)

    def leg(self, attempt: AttemptId) -> Leg:
        return self._attempts[attempt]

    @property
    def owner(self) -> EndpointId | None:
        return self._owner.info.id if self._owner else None

    @property
    def wake_at(self) -> float | None:
        """The next instant at which time alone changes something; None once closed."""
        if self.phase is Phase.CLOSED:
            return None
        times = [self.opened_at + self.config.stream_timeout]
        times.extend(self.opened_at + launch.delay for launch in self._pending)
        times.extend(min(failed_at(leg, self.config), self._suspect_at(leg)) for leg in self.legs if leg.live)
        if (dry := self._dry_at()) is not None:
            times.append(dry)
        return min(times)

    # --- the machine --------------------------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take one event; return the commands it causes, in order. After Close there are none."""
        if isinstance(event, ChunkArrived):
            self.leg(event.attempt).record(event.chunk, now)
        elif isinstance(event, Accepted):
            self.leg(event.attempt).admit(event.receipt, now)
        if self.phase is not Phase.CLOSED:
            self._dispatch(event, now)
        commands, self._commands = self._commands, []
        return commands

    def _dispatch(self, event: Event, now: float) -> None:
        match event:
            case Opened():
                self.opened_at = now
                self._launch_due(now)
            case Woke():
                self._woke(now)
            case Accepted(attempt):
                self._admitted(self.leg(attempt), now)
            case ChunkArrived(attempt, chunk):
                self._chunk(self.leg(attempt), chunk, now)
            case StreamFailed(attempt, error):
                if (leg := self.leg(attempt)).live:
                    self._failed(leg, error, now)
            case Delivered(tokens):
                self.buffer.deliver(tokens)
                if self.phase is Phase.PAUSED:
                    self._resume_if_wanted(now)
            case ClientLeft():
                self._close(Close(), now)
            case _:
                assert_never(event)

    def _admitted(self, leg: Leg, now: float) -> None:
        if leg is self._target:
            self.migrations[-1].accepted_after = now - leg.started

    def _woke(self, now: float) -> None:
        if now >= self.opened_at + self.config.stream_timeout:
            error = EndpointTimeout(f"the stream exceeded its {self.config.stream_timeout:g} s", self.owner or "")
            self._close(Close(error=error), now)
            return
        if (dry := self._dry_at()) is not None and now >= dry:
            self._abandon(now)
        for leg in tuple(self.legs):
            if leg.live and now >= failed_at(leg, self.config):
                self._timed_out(leg, now)
            elif leg.live and now >= self._suspect_at(leg):
                self._suspect(leg, now)
        self._launch_due(now)

    # --- prefill ------------------------------------------------------------------------------------------------

    def _launch_due(self, now: float) -> None:
        while self._pending and now >= self.opened_at + self._pending[0].delay:
            if self._candidates.is_sick(self._pending[0].endpoint) and any(leg.live for leg in self.legs):
                self._pending.pop(0)
            else:
                self._launch_next(now)

    def _launch_next(self, now: float) -> None:
        launch = self._pending.pop(0)
        self._start(launch.endpoint, LegReason.HEDGE if launch.delay > 0 else LegReason.DISPATCH, now)

    def _won(self, winner: Leg, now: float) -> None:
        self._pending.clear()
        self.winner = self._owner = winner
        self.phase = Phase.DECODE
        for loser in [leg for leg in self.legs if leg.live and leg is not winner]:
            if self._candidates.may_park(loser.info, [winner.info.id]):
                self._cancel(loser, LegOutcome.PARKED, now)
            elif loser.info.kind is EndpointKind.CLOUD:
                loser.watched = True
            else:
                self._cancel(loser, LegOutcome.LOST, now)

    def _prefill_failed(self, leg: Leg, error: DiscoError, now: float) -> None:
        # What is too long or unsupported here may well be served elsewhere.
        if isinstance(error, InvalidRequest) and not isinstance(error, PromptTooLong | Unsupported):
            self._close(Close(error=error), now)
        elif any(other.live and not other.overdue for other in self.legs):
            pass
        elif self._pending:
            self._launch_next(now)
        elif any(other.live for other in self.legs):
            self._join(now)
        elif self._empty is not None:
            self._answer_empty(*self._empty, now)
        elif self._rescues < self.config.max_rescues and (other := self._candidates.retry(leg, error, self.legs)):
            self._rescues += 1
            self._start(other, LegReason.RETRY, now)
        else:
            self._give_up(now)

    # --- chunks -------------------------------------------------------------------------------------------------

    def _chunk(self, leg: Leg, chunk: TokenChunk, now: float) -> None:
        if not leg.live:
            return
        if leg.watched:
            if chunk.count or chunk.finish:
                self._cancel(leg, LegOutcome.LOST, now)
        elif leg is self._owner:
            if self.phase is Phase.HANDOFF:
                self._standby(chunk, now)
            else:
                self._owned(leg, chunk, now)
        elif chunk.count or chunk.finish is not None:
            self._first_content(leg, chunk, now)

    def _first_content(self, leg: Leg, chunk: TokenChunk, now: float) -> None:
        """A racer or a target speaks first. It may own the stream only if it continues exactly from here."""
        if leg.next_index != self.buffer.accepted or chunk.index != self.buffer.accepted:
            self._contract_broken(leg, f"began at token {chunk.index}, expected {self.buffer.accepted}", now)
        elif chunk.index + chunk.count > self.config.max_tokens:
            self._contract_broken(leg, "more tokens than allowed", now)
        elif not chunk.count and chunk.finish is FinishReason.PAUSED:
            self._contract_broken(leg, "paused without a token", now)
        elif not chunk.count and chunk.finish is not None:
            self._ended_without_content(leg, chunk.finish, now)
        else:
            if self.phase is Phase.PREFILL:
                self._won(leg, now)
            else:
                self._take_over(leg, now)
            self._owned(leg, chunk, now)

    def _owned(self, leg: Leg, chunk: TokenChunk, now: float) -> None:
        before = self.buffer.accepted
        if chunk.index + chunk.count > self.config.max_tokens:
            self._contract_broken(leg, "more tokens than allowed", now)
            return
        try:
            release = self.buffer.accept(chunk, leg.info.vocabulary, now)
        except OutOfOrder as broken:
            self._contract_broken(leg, str(broken), now)
            return
        leg.used += self.buffer.accepted - before
        if release is not None:
            self._emit(release, leg)
        if chunk.finish is not None:
            leg.end(LegOutcome.PAUSED if chunk.finish is FinishReason.PAUSED else LegOutcome.COMPLETED, now)
        if self.buffer.stopped or chunk.finish is FinishReason.STOP:
            self._complete(leg, FinishReason.STOP, now)
        elif self.buffer.accepted >= self.config.max_tokens or chunk.finish is FinishReason.LENGTH:
            self._complete(leg, FinishReason.LENGTH, now)
        elif chunk.finish is FinishReason.PAUSED or self._reader_stopped(leg):
            self._pause(leg, now)
        elif chunk.count:
            self._maybe_migrate(leg, now)

    def _standby(self, chunk: TokenChunk, now: float) -> None:
        self._surplus.append(chunk)
        assert self._target is not None
        if chunk.finish is not None or self._target.reason is LegReason.RESCUE:
            self._abandon(now)

    def _take_over(self, leg: Leg, now: float) -> None:
        record = self.migrations[-1]
        record.end("completed", now)
        record.gap = now - self.buffer.arrivals[-1] if self.buffer.arrivals else None
        if self._owner is not None and self._owner.overdue:
            self._cancel(self._owner, LegOutcome.FAILED, now)
            self._blame(self._owner, silence(self._owner))
        elif self._owner is not None:
            self._cancel(self._owner, LegOutcome.HANDED_OVER, now)
        self._owner, self._target = leg, None
        self.phase = Phase.DECODE

    def _ended_without_content(self, leg: Leg, finish: FinishReason, now: float) -> None:
        leg.end(LegOutcome.EMPTY, now)
        if leg is self._target:
            self._take_over(leg, now)
            self._complete(leg, finish, now)
        elif any(other.live for other in self.legs):
            self._empty = leg, finish
        elif self._pending:
            self._empty = leg, finish
            self._launch_next(now)
        else:
            self._answer_empty(leg, finish, now)

    def _answer_empty(self, leg: Leg, finish: FinishReason, now: float) -> None:
        self.winner = leg
        self._complete(leg, finish, now)

    def _contract_broken(self, leg: Leg, how: str, now: float) -> None:
        self._cancel(leg, LegOutcome.FAILED, now)
        self._failed(leg, EndpointFault(f"{leg.info.id}: {how}", leg.info.id), now)

    # --- failures -----------------------------------------------------------------------------------------------

    def _failed(self, leg: Leg, error: DiscoError, now: float) -> None:
        leg.end(LegOutcome.FAILED, now)
        self._blame(leg, error)
        if leg.watched:
            return
        if self.phase is Phase.PREFILL:
            self._prefill_failed(leg, error, now)
        elif leg is self._target:
            self._target_failed(leg, now)
        else:
            self._owner = None
            if self._target is None:
                self._rescue(now)

    def _blame(self, leg: Leg, error: DiscoError) -> None:
        leg.error = error
        harmless = leg.watched or (leg is self._target and leg.reason is LegReason.MIGRATION)
        if not harmless and (self._first_error is None or isinstance(self._first_error, PromptTooLong)):
            self._first_error = error

    def _give_up(self, now: float) -> None:
        """Nobody is left who could serve."""
        self._close(Close(error=first_cause(self._first_error or self.legs[-1].error, self.legs)), now)

    def _target_failed(self, leg: Leg, now: float) -> None:
        self.migrations[-1].end("failed", now)
        self._target = None
        if leg.reason is LegReason.MIGRATION:
            self._planned = self.config.max_planned
        if self._owner is not None:
            self._back_to_source(self._owner, now)
        else:
            self._rescue(now)

    def _abandon(self, now: float) -> None:
        assert self._target is not None
        assert self._owner is not None
        self.migrations[-1].end("abandoned", now)
        self._cancel(self._target, LegOutcome.ABANDONED, now)
        if self._target.reason is LegReason.RESCUE:
            self._rescues -= 1
        else:
            self._planned = self.config.max_planned
        self._target = None
        self._back_to_source(self._owner, now)

    def _back_to_source(self, owner: Leg, now: float) -> None:
        self.phase = Phase.DECODE
        for chunk in self._surplus:
            if self._owner is owner:
                self._owned(owner, chunk, now)

    def _rescue(self, now: float) -> None:
        target = None
        if self._rescues < self.config.max_rescues:
            target = self._candidates.rescuer(self.legs, self._state(now))
        if target is None:
            self._give_up(now)
            return
        self._rescues += 1
        self._hand_over(target, LegReason.RESCUE, now)

    # --- silence ------------------------------------------------------------------------------------------------

    def _suspect(self, leg: Leg, now: float) -> None:
        """``leg`` is silent for longer than its endpoint ever is. It is not given up, but somebody else is tried."""
        leg.suspected_at = now
        if self.phase is Phase.PREFILL:
            self._join(now)
        elif self._rescues < self.config.max_rescues:
            stand_in = self._candidates.stand_in(leg, self.legs, self._state(now))
            if stand_in is None:
                return
            if leg is self._target:
                # Nobody can wait beside it, for a stream has one target.
                self._timed_out(leg, now)
            else:
                self._rescues += 1
                self._hand_over(stand_in, LegReason.RESCUE, now)

    def _join(self, now: float) -> None:
        """Start somebody beside legs that are all overdue, if there is anybody."""
        if any(leg.live and not leg.overdue for leg in self.legs):
            return
        sound = [name for name in self._candidates.untried(self.legs) if not self._candidates.is_sick(name)]
        if self._pending:
            self._launch_next(now)
        elif sound and self._rescues < self.config.max_rescues:
            self._rescues += 1
            self._start(sound[0], LegReason.RETRY, now)

    def _timed_out(self, leg: Leg, now: float) -> None:
        self._cancel(leg, LegOutcome.FAILED, now)
        self._failed(leg, silence(leg), now)

    # --- handoffs -----------------------------------------------------------------------------------------------

    def _maybe_migrate(self, source: Leg, now: float) -> None:
        barred = self._planned >= self.config.max_planned
        keep = self.config.park_seconds
        parked = {leg.info.id: now - leg.started for leg in self.legs if leg.is_parked(now, keep)}
        decisions = self._candidates.moves(source.info, self.legs, self._state(now), barred=barred, parked=parked)
        self.verdicts.update({decision.target: decision for decision in decisions})
        self.judged_at.update(dict.fromkeys((decision.target for decision in decisions), now))
        if not decisions or decisions[0].verdict is not Verdict.GO:
            return
        self._planned += 1
        if self._mover.mode is MigrationMode.BREAK:
            self._cancel(source, LegOutcome.HANDED_OVER, now)
            self._owner = None
        self._hand_over(self._candidates[decisions[0].target], LegReason.MIGRATION, now)

    def _state(self, now: float) -> StreamState:
        b = self.buffer
        return StreamState(
            self.prompt_tokens,
            b.accepted,
            self.config.max_tokens,
            b.lead(now),
            b.rate,
            open_character=b.open_tokens > 0,
        )

    def _hand_over(self, target: EndpointInfo, reason: LegReason, now: float) -> None:
        handoff = self.buffer.handoff(target.vocabulary if target.continues_by is ContinuesBy.IDS else None)
        if handoff.packed_ids is None:
            self.buffer.roll_back()
        source = next((leg.info.id for leg in reversed(self.legs) if leg.used), "")
        mode = MigrationMode.BREAK if self._owner is None else MigrationMode.OVERLAP
        self.phase = Phase.HANDOFF
        self._surplus = []
        self._target = self._start(target.id, reason, now, handoff)
        self.migrations.append(MigrationRecord(source, target.id, handoff.next_index, reason, mode.value, now))

    def _dry_at(self) -> float | None:
        """When the standby source of a planned move must step in again: the reader is about to miss a token."""
        if self._owner is None or self._target is None or self._target.reason is not LegReason.MIGRATION:
            return None
        dry = self.buffer.runs_dry_at()
        return None if dry is None else dry - DRY_MARGIN

    # --- a reader that does not keep up -------------------------------------------------------------------------

    def _reader_stopped(self, leg: Leg) -> bool:
        return leg.info.continues_by is not ContinuesBy.NO and self.buffer.backlog >= self.config.ahead_tokens * 3 // 4

    def _pause(self, leg: Leg, now: float) -> None:
        if leg.live:
            self._cancel(leg, LegOutcome.PAUSED, now)
        self._owner = None
        self.phase = Phase.PAUSED
        self._resume_if_wanted(now)

    def _resume_if_wanted(self, now: float) -> None:
        if self.buffer.releasable == self.buffer.delivered or self.buffer.backlog <= self.config.ahead_tokens // 4:
            paused = next(leg for leg in reversed(self.legs) if leg.outcome is LegOutcome.PAUSED)
            self._hand_over(paused.info, LegReason.RESUME, now)

    # --- plumbing -----------------------------------------------------------------------------------------------

    def _start(self, endpoint: EndpointId, reason: LegReason, now: float, handoff: Handoff | None = None) -> Leg:
        info = self._candidates[endpoint]
        rivals = [other.info.id for other in self.legs if other.live] + [launch.endpoint for launch in self._pending]
        leg = Leg(f"{self.request_id}-{len(self.legs)}-{endpoint}", info, reason, now, handoff, last_item=now)
        leg.patience = self._watch.patience(endpoint, self.prompt_tokens + leg.next_index)
        self.legs.append(leg)
        self._attempts[leg.attempt] = leg
        park = self.config.park_seconds if handoff is None and self._candidates.may_park(info, rivals) else 0.0
        remaining = self.config.max_tokens - leg.next_index
        pace = self.config.pace(info, self.buffer.lead(now), self.buffer.backlog)
        self._commands.append(StartStream(leg.attempt, endpoint, remaining, pace, handoff, park))
        return leg

    def _emit(self, release: Release, leg: Leg) -> None:
        if release.text or release.count:
            self._commands.append(Emit(release.index, release.count, release.text, leg.info.id))

    def _complete(self, leg: Leg, finish: FinishReason, now: float) -> None:
        self._emit(self.buffer.finish(now), leg)
        if leg.live:
            self._cancel(leg, LegOutcome.COMPLETED, now)
        self._close(Close(finish), now)

    def _close(self, close: Close, now: float) -> None:
        for leg in self.legs:
            if leg.live:
                self._cancel(leg, LegOutcome.LOST if leg.watched else LegOutcome.CANCELLED, now)
        if self._target is not None:
            self.migrations[-1].end("cancelled", now)
        self._pending.clear()
        self._owner = self._target = None
        self.phase = Phase.CLOSED
        self.closed_at = now
        self._commands.append(close)

    def _cancel(self, leg: Leg, outcome: LegOutcome, now: float) -> None:
        leg.end(outcome, now, cut=True)
        self._commands.append(CancelStream(leg.attempt))

    def _suspect_at(self, leg: Leg) -> float:
        """When its silence becomes suspicious; infinite where that would change nothing."""
        if leg is self._owner:
            return suspected_at(leg, self.config) if self.phase is Phase.DECODE else math.inf
        # A target that is late may have its source beside it.
        if leg.watched or (leg is self._target and self._owner is not None):
            return math.inf
        return suspected_at(leg, self.config)
