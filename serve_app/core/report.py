"""What happened to one request, as the JSON-ready ``disco`` object. Never contains its text."""

from __future__ import annotations

from typing import Any, TypedDict

from serve_app.core.cost import CostModel
from serve_app.core.legs import Leg, LegOutcome, LegReason
from serve_app.core.session import StreamSession
from serve_app.core.stats import delay_num, gaps, perceived_tbts, percentile, qoe


class LegReport(TypedDict):
    """start_s is relative to the request's arrival, ttft_s to the leg's start; cost in USD.

    ``cause`` is ``error`` in words.
    """

    attempt: str
    endpoint: str
    kind: str
    imitates: str | None
    reason: str
    start_s: float
    ttft_s: float | None
    queued_s: float | None
    tokens: int
    prefill_tokens: int
    cost_usd: float
    cost_exact: bool
    outcome: str
    imitation_late_s: float
    error: str | None
    cause: str | None


def prefill_tokens(leg: Leg, session: StreamSession) -> int:
    """Tokens the leg had to prefill, handoff included; 0 unless a slot was given to it."""
    if leg.receipt is None:
        return 0
    prompt = leg.receipt.prompt_tokens
    return max(0, (session.prompt_tokens if prompt is None else prompt) + leg.next_index - leg.receipt.reused)


def leg_report(leg: Leg, session: StreamSession, costs: CostModel) -> LegReport:
    prefilled = prefill_tokens(leg, session)
    return LegReport(
        attempt=leg.attempt,
        endpoint=leg.info.id,
        kind=leg.info.kind.value,
        imitates=leg.info.imitates,
        reason=leg.reason.value,
        start_s=_round(leg.started - session.opened_at),
        ttft_s=_round(leg.ttft),
        queued_s=_round(leg.receipt.queued) if leg.receipt else None,
        tokens=leg.tokens,
        prefill_tokens=prefilled,
        cost_usd=_usd(costs.cost(leg.info.id, prefilled, leg.tokens, cancelled=leg.cut)),
        cost_exact=_exact(leg),
        outcome=leg.outcome.value,
        imitation_late_s=_round(leg.late),
        error=leg.error.code if leg.error else None,
        cause=leg.error.message if leg.error else None,
    )


def _exact(leg: Leg) -> bool:
    """What was cut off or broke may have cost more than it reported. A parked prefill runs to its end all the same."""
    if leg.receipt is None or leg.outcome is LegOutcome.PARKED:
        return True
    return leg.info.counts_tokens and not leg.cut and leg.outcome is not LegOutcome.FAILED


def build_report(
    session: StreamSession, costs: CostModel, *, notional: bool, expected_ttft: float = 1.0
) -> dict[str, Any]:
    """``expected_ttft``: seconds, the QoE's expectation (Andes)."""
    legs = [leg_report(leg, session, costs) for leg in session.legs]
    shown = [arrival - session.opened_at for arrival in session.buffer.arrivals]
    rate = session.config.rate
    moved = [record for record in session.migrations if record.reason is not LegReason.RESUME]
    completed = [record for record in moved if record.outcome == "completed"]
    tbts = perceived_tbts(shown, rate) if rate is not None else gaps(shown)
    return {
        "policy": session.plan.policy,
        "reason": session.plan.reason,
        "eligible": list(session.eligible),
        "avoided": list(session.plan.avoided),
        "hedge": _hedge(session),
        "winner": session.winner.info.id if session.winner else None,
        "legs": legs,
        "migrations": [
            {
                "from": record.source,
                "to": record.target,
                "at_token": record.at_token,
                "mode": record.mode,
                "reason": record.reason.value,
                "outcome": record.outcome,
                "gap_s": _round(record.gap),
                "accepted_after_s": _round(record.accepted_after),
            }
            for record in session.migrations
        ],
        "verdicts": [
            {
                "target": decision.target,
                "verdict": decision.verdict.value,
                "saving_usd": decision.saving,
                "overhead_usd": decision.overhead,
                "handover_s": _round(decision.handover),
                "buffer_needed": _round(decision.buffer_needed),
                "lead": decision.lead,
            }
            for decision in session.verdicts.values()
        ],
        "ttft_s": _round(shown[0]) if shown else None,
        "tbt_p99_s": _round(percentile(tbts, 0.99)) if tbts else None,
        "delay_num": delay_num(shown, rate, completed[0].at_token) if completed and rate is not None else 0,
        "qoe": _round(qoe(shown, rate, expected_ttft)) if shown and rate is not None else None,
        "cost_usd": _usd(sum(leg["cost_usd"] for leg in legs)),
        "cost_exact": all(leg["cost_exact"] for leg in legs),
        "cost_notional": notional,
        "prompt_tokens_estimated": session.config.prompt_tokens,
        "prompt_tokens": session.prompt_tokens,
        "completion_tokens": session.buffer.accepted,
    }


def _hedge(session: StreamSession) -> str:
    """What became of the second launch, if one was planned; "race": both started at once."""
    if len(session.plan.launches) < 2:
        return "none"
    if session.plan.launches[1].delay <= 0:
        return "race"
    return "fired" if any(leg.reason is LegReason.HEDGE for leg in session.legs) else "not_needed"


def _usd(value: float) -> float:
    """Without what floats add in their last digits."""
    return round(value, 15)


def _round(value: float | None) -> Any:
    return None if value is None else round(value, 6)
