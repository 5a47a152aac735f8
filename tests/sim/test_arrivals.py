from __future__ import annotations

import numpy as np
import pytest

from serve_app.core.latency import LinearTtft
from serve_app.core.schedule import NEVER, Delays
from serve_app.sim.arrivals import client, poisson, rescaled
from serve_app.sim.public import ClientRates, servegen
from serve_app.sim.queued import replay_queued
from serve_app.sim.requests import Population, Requests
from serve_app.sim.vector import replay
from tests.sim.public_data import FOLDER, needs_public_data

#: Half an hour without requests, then half an hour with one every 10 s, evenly spread.
SLEEPER = ClientRates(
    "sleeper",
    np.array([0.0, 1800.0]),
    np.array([0.0, 0.1]),
    ("", "Gamma"),
    np.array([0.0, 9.0]),
    np.array([0.0, 10 / 9]),
)
DEVICE = LinearTtft(0.01, 0.1)


def test_poisson_has_the_wanted_mean_and_no_memory() -> None:
    gaps = np.diff(poisson(20_000, 30.0, np.random.default_rng(1)))
    assert gaps.mean() == pytest.approx(30, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(1, rel=0.03)


def test_a_trace_keeps_its_pattern_at_another_pace() -> None:
    stretched = rescaled(np.array([0.0, 1.0, 4.0]), 4, mean_gap=30.0)
    assert np.diff(stretched).tolist() == pytest.approx([45, 15, 45])
    assert stretched[-1] / 4 == pytest.approx(30)
    with pytest.raises(ValueError, match="two different instants"):
        rescaled(np.zeros(5), 4, 30.0)


@pytest.mark.parametrize("mean_gap", [2.0, 30.0])
def test_a_client_sleeps_as_it_did_and_comes_as_often_as_wanted(mean_gap: float) -> None:
    count = round(10 * 3600 / mean_gap)
    arrivals = client(SLEEPER, count, mean_gap, np.random.default_rng(2))
    assert arrivals.size == count
    assert arrivals[-1] / count == pytest.approx(mean_gap)
    gaps = np.diff(arrivals)
    assert (gaps >= 0).all()
    pauses = gaps[gaps > 1000]
    assert pauses.size in (9, 10)
    assert pauses == pytest.approx(np.full(pauses.size, 1800), rel=0.1)
    assert np.median(gaps) == pytest.approx(mean_gap / 2, rel=0.1)


def test_a_client_that_never_comes_is_refused() -> None:
    never = ClientRates("never", np.zeros(2), np.zeros(2), ("", ""), np.zeros(2), np.zeros(2))
    with pytest.raises(ValueError, match="no window"):
        client(never, 10, 30.0, np.random.default_rng(1))


@needs_public_data
def test_every_public_client_can_be_rescaled() -> None:
    for rates in servegen(FOLDER / "servegen_m_small"):
        arrivals = client(rates, 3000, 30.0, np.random.default_rng(3))
        assert arrivals.size == 3000
        assert arrivals[-1] / 3000 == pytest.approx(30), rates.name


def requests(ttfts: list[float], outputs: list[int]) -> Requests:
    n = len(ttfts)
    return Requests(np.full(n, 10), np.array(outputs), np.array(ttfts), np.zeros(n))


def test_far_apart_requests_never_queue() -> None:
    rng = np.random.default_rng(4)
    population = Population(rng.exponential(0.5, 100), rng.integers(5, 90, 100), rng.integers(1, 200, 100), DEVICE)
    some = population.draw(500, rng)
    delays = Delays(
        np.choose((some.u * 3).astype(int), [0.0, NEVER, 0.4]), np.choose((some.u * 3).astype(int), [0.3, 0.0, 0.0])
    )
    alone = replay(some, delays, DEVICE)
    queued = replay_queued(some, delays, np.arange(500) * 1000.0, DEVICE, 20.0)
    assert queued.ttft == pytest.approx(alone.ttft)
    assert queued.waited.max() == pytest.approx(0, abs=1e-9)
    assert (queued.device_started == alone.device_started).all()
    assert (queued.server_started == alone.server_started).all()


def test_a_busy_device_is_waited_for_unless_the_server_answers_first() -> None:
    # T_d = 0.2 s; the first answer holds the device until 0.2 + 20 / 20 = 1.2 s.
    some = requests([9.0, 9.0, 0.5], [21, 21, 21])
    delays = Delays(np.array([NEVER, NEVER, 0.0]), np.zeros(3))
    queued = replay_queued(some, delays, np.array([0.0, 0.1, 0.2]), DEVICE, 20.0)
    assert queued.ttft.tolist() == pytest.approx([0.2, 1.3, 0.5])
    assert queued.waited.tolist() == pytest.approx([0, 1.1, 0])
    assert queued.device_started.tolist() == [True, True, False]


def test_a_device_that_loses_is_free_at_the_servers_token() -> None:
    some = requests([0.15, 9.0], [100, 100])
    queued = replay_queued(some, Delays(np.zeros(2), np.zeros(2)), np.array([0.0, 0.1]), DEVICE, 20.0)
    assert queued.ttft.tolist() == pytest.approx([0.15, 0.25])
    assert queued.waited.tolist() == pytest.approx([0, 0.05])
