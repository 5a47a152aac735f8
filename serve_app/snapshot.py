"""What one router replica does at this moment, for whoever runs it: estimates, budget, costs, streams; never text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from serve_app.core.dispatch import Scheduled
from serve_app.core.latency import EmpiricalTtft
from serve_app.core.model import EndpointInfo, EndpointKind
from serve_app.core.planner import Planner
from serve_app.core.policies import PolicyName
from serve_app.core.schedule import NEVER
from serve_app.core.session import StreamSession
from serve_app.core.tally import Tally
from serve_app.live_policy import policy_of
from serve_app.settings import LiveSettings
from serve_app.state import SharedState

#: Seconds for which a snapshot serves everybody who asks.
FRESH: Final = 0.5
#: Points of a distribution of TTFTs, prompt lengths whose plan is told, and streams that are listed, newest first.
MOST_POINTS: Final = 60
MOST_LENGTHS: Final = 24
MOST_STREAMS: Final = 50
#: Of the plans that a policy makes by chance, the one in the middle.
_MIDDLE: Final = 0.5


class Glance:
    """A snapshot that is taken at most once in ``FRESH`` seconds, however many look at it."""

    def __init__(self, take: Callable[[], dict[str, Any]], clock: Callable[[], float]) -> None:
        self._take = take
        self._clock = clock
        self._taken: tuple[float, dict[str, Any]] | None = None

    def __call__(self) -> dict[str, Any]:
        now = self._clock()
        if self._taken is None or now >= self._taken[0] + FRESH:
            self._taken = now, self._take()
        return self._taken[1]


def build_snapshot(
    live: LiveSettings,
    state: SharedState,
    tally: Tally,
    endpoints: Iterable[tuple[EndpointInfo, bool]],
    running: Iterable[tuple[str, StreamSession]],
    now: float,
) -> dict[str, Any]:
    """JSON-ready. ``endpoints``: each, and whether it is ready.

    ``running``: streams by the name of the model they serve, newest last. ``now``: their clock.
    """
    sessions = list(running)
    return {
        "notional": live.prices.notional,
        "policy": policy_of(live),
        "policy_names": [name.value for name in PolicyName],
        "budget": _budget(live, state),
        "endpoints": [_endpoint(info, state, tally, ready=ready) for info, ready in endpoints],
        "plans": [_plans(scheduled, state.planner) for scheduled in state.planner.scheduled],
        "cost": _cost(tally),
        "streams_over": tally.streams,
        "moves": tally.moves,
        "streams_running": len(sessions),
        "streams": [_stream(model, session, now) for model, session in sessions[: -MOST_STREAMS - 1 : -1]],
    }


def _budget(live: LiveSettings, state: SharedState) -> dict[str, Any]:
    """Shares of all tokens that count; ``constrained``: whose, None with endpoints of one kind only."""
    budget, planner = state.budget, state.planner
    return {
        "share": live.policy.budget,
        "spent_share": budget.spent_share,
        "spent_tokens": budget.spent,
        "admitted_tokens": budget.admitted,
        "balance_tokens": budget.balance,
        "constrained": planner.constrained_kind and planner.constrained_kind.value,
        "counts_decode": planner.counts_decode,
    }


def _endpoint(info: EndpointInfo, state: SharedState, tally: Tally, *, ready: bool) -> dict[str, Any]:
    name, estimates = info.id, state.planner.estimates
    unit = state.planner.costs.unit[name]
    return {
        "endpoint": name,
        "kind": info.kind.value,
        "ready": ready,
        "breaker": state.breakers[name].state.value,
        "legs_running": state.load.running(name),
        "slots": state.load.slots(name),
        "queue_s": state.load.queue_seconds(name),
        "decode_rate": state.planner.profile(name).decode_rate,
        "wins": tally.wins[name],
        "cost_usd": tally.cost.get(name, 0.0),
        "usd_per_mtok": {"prefill": unit.prefill * 1e6, "decode": unit.decode * 1e6},
        "ttft_s": _points(estimates.ttfts(name)),
        "ttfts_seen": estimates.ttfts_seen(name),
    }


def _points(ttft: EmpiricalTtft) -> list[float]:
    """Seconds, ascending, each as likely as any other."""
    count = min(MOST_POINTS, ttft.size)
    return [round(ttft.quantile((rank + 0.5) / count), 6) for rank in range(count)]


def _plans(scheduled: Scheduled, planner: Planner) -> dict[str, Any]:
    """When each side would start, by prompt length; None: never."""
    lengths = planner.estimates.prompts.strata(MOST_LENGTHS).longest.tolist()
    starts = [(tokens, scheduled.schedule.start(tokens, _MIDDLE)) for tokens in lengths]
    return {
        "cloud": scheduled.cloud,
        "device": scheduled.device,
        "policy": scheduled.name,
        "rule": scheduled.rule,
        "starts": [
            {"prompt_tokens": tokens, "cloud_s": _delay(start.server), "device_s": _delay(start.device)}
            for tokens, start in starts
        ],
    }


def _delay(seconds: float) -> float | None:
    return None if seconds == NEVER else round(seconds, 6)


def _cost(tally: Tally) -> dict[str, Any]:
    compared = tally.comparison
    return {
        "spent_usd": sum(tally.cost.values()),
        "compared": {
            "answers": compared.answers,
            "spent_usd": compared.spent,
            "cloud_only_usd": compared.alone[EndpointKind.CLOUD],
            "device_only_usd": compared.alone[EndpointKind.DEVICE],
        },
    }


def _stream(model: str, session: StreamSession, now: float) -> dict[str, Any]:
    return {
        "model": model,
        "age_s": round(now - session.opened_at, 3),
        "phase": session.phase.name.lower(),
        "owner": session.owner,
        "legs": sum(leg.live for leg in session.legs),
        "accepted": session.buffer.accepted,
        "lead": session.buffer.lead(now),
        "moves": sum(record.outcome == "completed" for record in session.migrations),
    }
