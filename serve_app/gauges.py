"""What gauges read off a router that runs. They are read on its event loop, whose clock they go by."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from serve_app import instruments as i
from serve_app.admission import Admission
from serve_app.core.breaker import BreakerState
from serve_app.core.buffer import TokenBuffer
from serve_app.core.model import EndpointId
from serve_app.metrics import Metrics
from serve_app.state import SharedState

_STATES = (BreakerState.CLOSED, BreakerState.HALF_OPEN, BreakerState.OPEN)


def watch_admission(metrics: Metrics, admission: Admission) -> None:
    metrics.watch(i.STREAMS, lambda: {(): admission.running})


def watch_state(metrics: Metrics, state: SharedState) -> None:
    """Estimates, budget, and load and breakers of the endpoints that are known at that time."""

    def fit_age() -> float:
        fitted = state.planner.fitted_at
        return 0.0 if fitted is None else _now() - fitted

    def of_each(read: Callable[[EndpointId], float]) -> Callable[[], dict[tuple[str, ...], float]]:
        return lambda: {(name,): read(name) for name in state.load.own}

    metrics.watch(i.BUDGET_SHARE, lambda: {(): state.budget.spent_share})
    metrics.watch(i.BUDGET_TARGET, lambda: {(): state.budget.share})
    metrics.watch(i.STATIC_PLANS, lambda: {(): state.planner.fallbacks})
    metrics.watch(i.FIT_AGE, lambda: {(): fit_age()})
    metrics.watch(i.BREAKER, of_each(lambda name: _STATES.index(state.breakers[name].state)))
    metrics.watch(i.RUNNING, of_each(lambda name: state.load.own[name]))
    metrics.watch(i.QUEUE, of_each(state.load.queue_seconds))


def watch_buffers(metrics: Metrics, buffers: Callable[[], Iterable[TokenBuffer]]) -> None:
    """``buffers``: of the streams under way."""
    metrics.watch(i.BACKLOG, lambda: {(): sum(buffer.backlog for buffer in buffers())})
    metrics.watch(i.LEAD, lambda: {(): sum(buffer.lead(_now()) for buffer in buffers())})


def _now() -> float:
    return asyncio.get_running_loop().time()
