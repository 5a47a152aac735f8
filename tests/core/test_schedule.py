"""One request is scheduled as it would be among a million."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from serve_app.core.baselines import DEVICE_ONLY, RACE, SERVER_ONLY, stochastic
from serve_app.core.dispatch import Starter
from serve_app.core.model import EndpointKind
from serve_app.core.optimal_threshold import fit_optimal_threshold
from serve_app.core.optimal_waits import fit_optimal_waits
from serve_app.core.schedule import NEVER
from serve_app.core.threshold import fit_threshold
from serve_app.core.wait_time import fit_waits
from tests.support.plans import DEVICES, DISTRIBUTIONS, LAST, SHARES, TTFTS

kinds, concurrency = st.sampled_from(EndpointKind), st.booleans()
schedules = st.one_of(
    st.sampled_from([SERVER_ONLY, DEVICE_ONLY, RACE]),
    st.builds(lambda kind, share, both: stochastic(kind, share, concurrent=both), kinds, SHARES, concurrency),
    st.builds(fit_waits, TTFTS, DISTRIBUTIONS, SHARES, SHARES),
    st.builds(fit_threshold, DISTRIBUTIONS, SHARES),
    st.builds(fit_optimal_waits, TTFTS, DISTRIBUTIONS, DEVICES, SHARES),
    st.builds(fit_optimal_threshold, TTFTS, DISTRIBUTIONS, DEVICES, SHARES, tail_guard=concurrency),
)
requests = st.lists(st.tuples(st.integers(1, 2500), st.floats(0, LAST)), min_size=1, max_size=40)


@given(schedules, requests)
def test_one_by_one_or_all_at_once(schedule: Starter, drawn: list[tuple[int, float]]) -> None:
    delays = schedule.delays(np.array([length for length, _ in drawn]), np.array([u for _, u in drawn]))
    assert delays.server.shape == delays.device.shape == (len(drawn),)
    starts = [schedule.start(length, u) for length, u in drawn]
    assert list(zip(delays.server.tolist(), delays.device.tolist(), strict=True)) == starts


@given(schedules, requests)
def test_some_side_starts_at_once(schedule: Starter, drawn: list[tuple[int, float]]) -> None:
    for length, u in drawn:
        server, device = schedule.start(length, u)
        assert min(server, device) == 0
        assert 0 <= max(server, device) <= NEVER
