"""When a running stream should move to a cheaper endpoint (paper section 7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from serve_app.core.cost import CostModel
from serve_app.core.latency import LatencyProfile, LinearTtft
from serve_app.core.model import ContinuesBy, EndpointId, EndpointInfo


class MigrationMode(StrEnum):
    """BREAK: the source stops at the trigger. OVERLAP: it runs on as a standby until the target delivers."""

    BREAK = "break"
    OVERLAP = "overlap"


class Verdict(StrEnum):
    """Why a stream moves, or why it stays."""

    GO = "go"
    OFF = "off"
    READER_UNKNOWN = "reader_unknown"
    LIMIT = "limit"
    CANNOT_CONTINUE = "cannot_continue"
    UNHEALTHY = "unhealthy"
    CONTEXT = "context"
    NOT_CHEAPER = "not_cheaper"
    SAVING = "saving"
    OPEN_CHARACTER = "open_character"
    BUFFER = "buffer"
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class MigrationDecision:
    """saving, overhead: USD. handover: t_m, seconds. buffer_needed (B = r_c t_m), lead: tokens.

    All of them are None where the move was out of the question before anything was weighed.
    """

    verdict: Verdict
    target: EndpointId
    saving: float | None = None
    overhead: float | None = None
    handover: float | None = None
    buffer_needed: float | None = None
    lead: float | None = None

    @property
    def gain(self) -> float:
        """Saving beyond the overhead, in USD."""
        return (self.saving or 0.0) - (self.overhead or 0.0)


@dataclass(frozen=True, slots=True)
class StreamState:
    """The stream at the moment of the question: l, n, the cap on n, the lead in tokens, r_c."""

    prompt_tokens: int
    accepted: int
    max_tokens: int
    lead: float
    rate: float | None
    open_character: bool


def handover_seconds(profile: LatencyProfile, tokens: int, network: float, quantile: float) -> float:
    """t_m: seconds from the trigger to the target's first token, with ``tokens`` to prefill.

    A linear endpoint is predictable: t_net + tokens / R_prefill + the intercept (which holds the first decode step).
    An empirical one is not: it is given the seconds within which it answers with probability ``quantile``.
    """
    if isinstance(profile.ttft, LinearTtft):
        return network + profile.ttft.predict(tokens)
    return network + profile.ttft.within(quantile)


#: How pessimistic t_m is about an endpoint whose TTFT is a distribution. A late target costs an abandoned handoff in
#: OVERLAP, but a visible gap in BREAK.
HANDOVER_QUANTILE = {MigrationMode.OVERLAP: 0.9, MigrationMode.BREAK: 0.99}


@dataclass(frozen=True, slots=True)
class Mover:
    """Decides moves with what is known now. ``network`` is t_net in seconds; ``mode`` None forbids planned moves.

    ``is_full``: a newcomer would queue at the endpoint. How long is too uncertain for a lead to hide it.
    """

    mode: MigrationMode | None
    network: float
    costs: CostModel
    profile: Callable[[EndpointId], LatencyProfile]
    expected_remaining: Callable[[int, int], float]
    is_full: Callable[[EndpointId], bool]

    def is_cheaper(self, target: EndpointId, source: EndpointId) -> bool:
        return self.costs.unit[target].decode < self.costs.unit[source].decode

    def consider(
        self, source: EndpointInfo, target: EndpointInfo, state: StreamState, *, parked: float | None = None
    ) -> MigrationDecision:
        """Judge one move. ``parked``: seconds since the target began a prefill of the prompt that it still keeps."""
        if self.mode is None:
            return MigrationDecision(Verdict.OFF, target.id)
        if state.rate is None:
            return MigrationDecision(Verdict.READER_UNKNOWN, target.id)
        if target.continues_by is ContinuesBy.NO:
            return MigrationDecision(Verdict.CANNOT_CONTINUE, target.id)
        if not fits(target, state):
            return MigrationDecision(Verdict.CONTEXT, target.id)
        if not self.is_cheaper(target.id, source.id):
            return MigrationDecision(Verdict.NOT_CHEAPER, target.id)
        return self._weigh(self.mode, source, target, state, parked)

    def _weigh(
        self, mode: MigrationMode, source: EndpointInfo, target: EndpointInfo, state: StreamState, parked: float | None
    ) -> MigrationDecision:
        assert state.rate is not None
        src, dst = self.costs.unit[source.id], self.costs.unit[target.id]
        whole = state.accepted + state.prompt_tokens
        to_prefill = whole if parked is None else state.accepted
        profile, quantile = self.profile(target.id), HANDOVER_QUANTILE[mode]
        handover = handover_seconds(profile, to_prefill, self.network, quantile)
        if parked is not None:
            # The parked prefill may still be under way, and the new call pays the fixed part of a TTFT again.
            begun = handover_seconds(profile, whole, self.network, quantile) - parked
            handover = max(handover, begun + handover_seconds(profile, 0, 0.0, quantile))
        remaining = self.expected_remaining(state.accepted, state.max_tokens)
        surplus = 0.0
        if mode is MigrationMode.OVERLAP:
            surplus = min(remaining, handover * self.profile(source.id).decode_rate)
        saving = (src.decode - dst.decode) * remaining
        overhead = dst.prefill * to_prefill + src.decode * surplus
        needed = state.rate * handover
        if saving <= overhead:
            verdict = Verdict.SAVING
        elif state.open_character:
            verdict = Verdict.OPEN_CHARACTER
        elif state.lead < needed:
            verdict = Verdict.BUFFER
        elif self.is_full(target.id):
            verdict = Verdict.BUSY
        else:
            verdict = Verdict.GO
        return MigrationDecision(verdict, target.id, saving, overhead, handover, needed, state.lead)


def fits(target: EndpointInfo, state: StreamState) -> bool:
    """Prompt, accepted and remaining tokens within the target's context."""
    return state.prompt_tokens + state.max_tokens <= target.context_length
