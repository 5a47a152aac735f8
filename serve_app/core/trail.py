"""What happens to one stream, told while it happens: a report's facts as events. Never its text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias, TypedDict

from serve_app.core.legs import Leg
from serve_app.core.migration import MigrationDecision
from serve_app.core.model import EndpointInfo
from serve_app.core.session import StreamSession

#: Seconds between two samples of what changes with every token.
SAMPLE_PERIOD: Final = 0.25
#: Events that wait for the client; beyond that no samples are added. What else is told is bounded by the legs.
MOST_WAITING: Final = 64


class PlannedLaunch(TypedDict):
    endpoint: str
    delay_s: float


class Place(TypedDict):
    endpoint: str
    kind: str
    imitates: str | None


class Planned(TypedDict):
    """``eligible``: endpoints that may take part. ``consumption_rate``: r_c, tokens per second."""

    type: Literal["plan"]
    at_s: float
    policy: str
    reason: str
    launches: list[PlannedLaunch]
    eligible: list[Place]
    avoided: list[str]
    prompt_tokens_estimated: int
    consumption_rate: float | None
    max_tokens: int


class LegStarted(TypedDict):
    """``from_token``: the first token that the leg owes."""

    type: Literal["leg"]
    at_s: float
    attempt: str
    endpoint: str
    reason: str
    from_token: int


class LegAdmitted(TypedDict):
    """The endpoint gave the leg a slot and begins the prefill."""

    type: Literal["admitted"]
    at_s: float
    attempt: str
    queued_s: float


class FirstToken(TypedDict):
    """``won``: it is the stream's first one."""

    type: Literal["first_token"]
    at_s: float
    attempt: str
    won: bool


class Judged(TypedDict):
    """As in the report's ``verdicts``; ``lead`` and ``buffer_needed`` (B) in tokens, None where nothing was weighed."""

    type: Literal["verdict"]
    at_s: float
    target: str
    verdict: str
    lead: float | None
    buffer_needed: float | None
    saving_usd: float | None
    overhead_usd: float | None


class Progress(TypedDict):
    """Tokens accepted, and those that the reader has not read yet."""

    type: Literal["progress"]
    at_s: float
    accepted: int
    lead: int


class HandoffStarted(TypedDict):
    type: Literal["handoff"]
    at_s: float
    source: str
    target: str
    at_token: int
    mode: str
    reason: str


class HandoffOver(TypedDict):
    type: Literal["handoff_over"]
    at_s: float
    target: str
    outcome: str
    gap_s: float | None


class LegOver(TypedDict):
    type: Literal["leg_over"]
    at_s: float
    attempt: str
    outcome: str
    tokens: int
    error: str | None


StreamEvent: TypeAlias = (
    Planned | LegStarted | LegAdmitted | FirstToken | Judged | Progress | HandoffStarted | HandoffOver | LegOver
)


class Trail:
    """Compares a session with what was told of it before. The session knows nothing of it.

    ``eligible``: the endpoints of the session. ``at_s`` is in seconds since the request's arrival, on its clock.
    """

    def __init__(self, session: StreamSession, eligible: Sequence[EndpointInfo]) -> None:
        self._session = session
        self._eligible = eligible
        self._waiting: list[StreamEvent] = []
        self._planned = False
        self._started = 0
        self._admitted: set[str] = set()
        self._spoken: set[str] = set()
        self._over: set[str] = set()
        self._handoffs = 0
        self._decided = 0
        self._verdicts: dict[str, MigrationDecision] = {}
        self._sampled_at: float | None = None

    @property
    def waiting(self) -> bool:
        return bool(self._waiting)

    def take(self) -> tuple[StreamEvent, ...]:
        """What was not told yet, in order; it counts as told from now on."""
        events, self._waiting = tuple(self._waiting), []
        return events

    def look(self, now: float) -> bool:
        """After the session handled an event at ``now``: whether there is anything to tell."""
        if not self._planned:
            self._plan()
        self._look_at_legs(now)
        self._look_at_handoffs(now)
        self._look_at_verdicts(now)
        return self.waiting

    def _plan(self) -> None:
        self._planned = True
        session, plan = self._session, self._session.plan
        self._waiting.append(
            Planned(
                type="plan",
                at_s=0.0,
                policy=plan.policy,
                reason=plan.reason,
                launches=[PlannedLaunch(endpoint=launch.endpoint, delay_s=launch.delay) for launch in plan.launches],
                eligible=[
                    Place(endpoint=info.id, kind=info.kind.value, imitates=info.imitates) for info in self._eligible
                ],
                avoided=list(plan.avoided),
                prompt_tokens_estimated=session.config.prompt_tokens,
                consumption_rate=session.config.rate,
                max_tokens=session.config.max_tokens,
            )
        )

    def _look_at_legs(self, now: float) -> None:
        legs = self._session.legs
        for leg in legs[self._started :]:
            self._waiting.append(
                LegStarted(
                    type="leg",
                    at_s=self._at(leg.started),
                    attempt=leg.attempt,
                    endpoint=leg.info.id,
                    reason=leg.reason.value,
                    from_token=leg.next_index,
                )
            )
        self._started = len(legs)
        if len(self._over) < len(legs):
            for leg in legs:
                if leg.attempt not in self._over:
                    self._look_at(leg, now)

    def _look_at(self, leg: Leg, now: float) -> None:
        if leg.receipt is not None and leg.attempt not in self._admitted:
            self._admitted.add(leg.attempt)
            queued = round(leg.receipt.queued, 6)
            self._waiting.append(LegAdmitted(type="admitted", at_s=self._at(now), attempt=leg.attempt, queued_s=queued))
        if leg.first_token is not None and leg.attempt not in self._spoken:
            self._spoken.add(leg.attempt)
            won = leg is self._session.winner
            self._waiting.append(
                FirstToken(type="first_token", at_s=self._at(leg.first_token), attempt=leg.attempt, won=won)
            )
        if leg.ended is not None:
            self._over.add(leg.attempt)
            self._waiting.append(
                LegOver(
                    type="leg_over",
                    at_s=self._at(leg.ended),
                    attempt=leg.attempt,
                    outcome=leg.outcome.value,
                    tokens=leg.tokens,
                    error=leg.error.code if leg.error else None,
                )
            )

    def _look_at_handoffs(self, now: float) -> None:
        """A stream has one at a time, so that only the last one can be undecided."""
        records = self._session.migrations
        for record in records[self._handoffs :]:
            self._waiting.append(
                HandoffStarted(
                    type="handoff",
                    at_s=self._at(record.started),
                    source=record.source,
                    target=record.target,
                    at_token=record.at_token,
                    mode=record.mode,
                    reason=record.reason.value,
                )
            )
        self._handoffs = len(records)
        for record in records[self._decided :]:
            if record.outcome == "pending":
                break
            self._decided += 1
            self._waiting.append(
                HandoffOver(
                    type="handoff_over",
                    at_s=self._at(now),
                    target=record.target,
                    outcome=record.outcome,
                    gap_s=None if record.gap is None else round(record.gap, 6),
                )
            )

    def _look_at_verdicts(self, now: float) -> None:
        """Each word when it changes; the figures once in a while, as long as they are judged anew."""
        session = self._session
        due = self._sampled_at is None or now >= self._sampled_at + SAMPLE_PERIOD
        sample = due and session.buffer.accepted > 0 and len(self._waiting) < MOST_WAITING
        for target, decision in session.verdicts.items():
            told = self._verdicts.get(target)
            if told is None or decision.verdict != told.verdict or (sample and decision is not told):
                self._verdicts[target] = decision
                self._waiting.append(self._judged(decision, now))
        if sample:
            self._sampled_at = now
            self._waiting.append(
                Progress(
                    type="progress",
                    at_s=self._at(now),
                    accepted=session.buffer.accepted,
                    lead=session.buffer.lead(now),
                )
            )

    def _judged(self, decision: MigrationDecision, now: float) -> Judged:
        needed = decision.buffer_needed
        return Judged(
            type="verdict",
            at_s=self._at(now),
            target=decision.target,
            verdict=decision.verdict.value,
            lead=decision.lead,
            buffer_needed=None if needed is None else round(needed, 6),
            saving_usd=decision.saving,
            overhead_usd=decision.overhead,
        )

    def _at(self, when: float) -> float:
        return round(when - self._session.opened_at, 6)
