from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.core.cost import Regime
from serve_app.core.latency import LinearTtft
from serve_app.core.schedule import NEVER, Delays
from serve_app.sim.bounds import best_share, best_waits, clairvoyant
from serve_app.sim.judge import LENGTHS, Bench, Reading, told_apart
from serve_app.sim.oracle import oracle
from serve_app.sim.requests import Requests
from serve_app.sim.vector import replay

SERVER = np.sort(np.random.default_rng(1).lognormal(-0.5, 1.0, 5))
PROMPTS = np.array([5.0, 20.0, 80.0])
CHANCE = np.array([0.5, 0.3, 0.2])
DEVICE = LinearTtft(0.01, 0.15)
ANSWERS = DEVICE.slope * PROMPTS + DEVICE.intercept


def test_no_combination_of_waits_beats_the_optimum_and_its_corners_are_waits() -> None:
    curve = best_waits(SERVER, PROMPTS, ANSWERS, CHANCE)
    corners = set()
    for waits in product([0.0, *SERVER.tolist()], repeat=3):
        runs = (SERVER[:, None] > np.array(waits)) | (np.array(waits) == 0)
        ttft = np.where(runs, np.minimum(SERVER[:, None], np.array(waits) + ANSWERS), SERVER[:, None])
        share = float(runs.mean(axis=0) @ (PROMPTS * CHANCE) / (PROMPTS @ CHANCE))
        mean = float(ttft.mean(axis=0) @ CHANCE)
        assert mean >= curve.at(share) - 1e-12
        corners.add((round(share, 9), round(mean, 9)))
    for share, mean in zip(curve.share, curve.mean, strict=True):
        assert (round(float(share), 9), round(float(mean), 9)) in corners


def test_the_best_share_of_races_is_a_knapsack() -> None:
    curve = best_share(SERVER, PROMPTS, ANSWERS, CHANCE)
    best: dict[float, float] = {}
    for races in product([False, True], repeat=3):
        ttft = np.where(races, np.minimum(SERVER[:, None], ANSWERS), ANSWERS)
        share = float((PROMPTS * CHANCE) @ np.array(races) / (PROMPTS @ CHANCE))
        mean = float(ttft.mean(axis=0) @ CHANCE)
        best[round(share, 9)] = min(best.get(round(share, 9), np.inf), mean)
        assert mean >= curve.at(share) - 1e-12
    assert curve.at(1.0) == pytest.approx(best[1.0])
    assert curve.at(0.0) == pytest.approx(best[0.0])


SETTINGS = [(regime, seed) for regime in Regime for seed in (1, 2)]


@pytest.fixture(params=SETTINGS, ids=str)
def bench(request: pytest.FixtureRequest) -> Bench:
    regime, seed = request.param
    rng = np.random.default_rng(9)
    return Bench(rng.lognormal(-0.6, 0.8, 61), told_apart(rng.integers(3, 200, 400)), DEVICE, regime, seed)


def test_the_halves_do_not_share_a_measurement(bench: Bench) -> None:
    assert not set(bench.knowledge.ttft.samples.tolist()) & set(bench.server.tolist())
    assert bench.knowledge.ttft.samples.size + bench.server.size == 61
    assert len(bench.requests) == bench.server.size * bench.prompts.size
    assert bench.prompts.size <= LENGTHS
    assert bench.chance.sum() == pytest.approx(1)


def test_bounds_are_ordered(bench: Bench) -> None:
    for share in np.linspace(0.02, 0.98, 25):
        concurrent = bench.stochastic_mean(Reading.CONCURRENT, share)
        assert bench.oracle.at(share) <= bench.optimum.at(share) + 1e-12
        assert bench.optimum.at(share) <= concurrent + 1e-12
        assert concurrent <= bench.stochastic_mean(Reading.EXCLUSIVE, share) + 1e-12
    for curve in (bench.optimum, bench.oracle):
        slopes = np.diff(curve.mean) / np.diff(curve.share)
        assert (np.diff(slopes) >= -1e-9).all()


def test_the_oracles_curve_is_the_oracle() -> None:
    lengths, rng = np.arange(1.0, 41.0), np.random.default_rng(8)
    server = np.sort(rng.lognormal(-0.6, 0.8, 50))
    shape = (server.size, lengths.size)
    answers = np.broadcast_to(DEVICE.slope * lengths + DEVICE.intercept, shape)
    faced = np.broadcast_to(server[:, None], shape)
    requests = Requests(np.tile(lengths, 50).astype(int), np.ones(2000, int), faced.ravel(), np.zeros(2000))
    for regime, (cheap, dear) in (
        (Regime.DEVICE_CONSTRAINED, (faced, answers)),
        (Regime.SERVER_CONSTRAINED, (answers, faced)),
    ):
        curve = clairvoyant(cheap, dear, lengths, np.full(40, 1 / 40))
        for budget in (0.1, 0.4, 0.7):
            played = replay(requests, oracle(requests, DEVICE, regime, budget), DEVICE)
            spent = requests.prompt_tokens @ played.started(regime) / requests.prompt_tokens.sum()
            assert played.ttft.mean() == pytest.approx(curve.at(float(spent)), abs=1e-6)


class Chance:
    """Chooses by ``u`` alone, exclusively or for a race."""

    def __init__(self, regime: Regime, share: float, reading: Reading) -> None:
        self.regime, self.share, self.reading = regime, share, reading

    def delays(self, prompt_tokens: np.ndarray, u: np.ndarray) -> Delays:
        chosen = u < self.share
        dear = np.where(chosen, 0.0, NEVER)
        cheap = np.where(chosen & (self.reading is Reading.EXCLUSIVE), NEVER, 0.0)
        return Delays(cheap, dear) if self.regime is Regime.DEVICE_CONSTRAINED else Delays(dear, cheap)


@pytest.mark.parametrize("reading", list(Reading))
def test_the_baselines_expectation_is_what_playing_it_gives(bench: Bench, reading: Reading) -> None:
    played = bench.play(Chance(bench.regime, 0.3, reading))
    assert played.spent == pytest.approx(0.3, abs=0.02)
    assert played.mean == pytest.approx(bench.stochastic_mean(reading, played.spent), rel=0.03)
    p99 = bench.stochastic_p99(reading, played.spent)
    assert (played.ttft > p99).mean(axis=0) @ bench.chance < 0.02
    assert (played.ttft >= p99).mean(axis=0) @ bench.chance > 0.005


def quantile(values: np.ndarray, chance: np.ndarray) -> float:
    order = np.argsort(values)
    return float(values[order][np.searchsorted(np.cumsum(chance[order]), 0.99 * chance.sum() - 1e-12)])


def test_weights_count_measurements_several_times(bench: Bench) -> None:
    played = bench.play(Chance(bench.regime, 0.5, Reading.CONCURRENT))
    equal, only = np.ones(bench.server.size), np.zeros(bench.server.size)
    only[3] = 2.0
    assert bench.p99(played.ttft, np.stack([equal, only])) == [played.p99, quantile(played.ttft[3], bench.chance)]
    everything = np.broadcast_to(bench.chance, played.ttft.shape).ravel()
    assert played.p99 == quantile(played.ttft.ravel(), everything)
    concurrent = bench.stochastic_p99(Reading.CONCURRENT, 1.0, only)
    assert concurrent == quantile(np.minimum(bench.cheap[3], bench.dear[3]), bench.chance)


@given(st.lists(st.floats(0.01, 9), min_size=1, max_size=12), st.floats(0, 1))
def test_clairvoyance_is_never_worse_than_knowing_f(ttfts: list[float], share: float) -> None:
    server = np.sort(np.array(ttfts))
    shape = (server.size, PROMPTS.size)
    cheap, dear = np.broadcast_to(server[:, None], shape), np.broadcast_to(ANSWERS, shape)
    assert (
        clairvoyant(cheap, dear, PROMPTS, CHANCE).at(share)
        <= best_waits(server, PROMPTS, ANSWERS, CHANCE).at(share) + 1e-9
    )
    assert (
        clairvoyant(dear, cheap, PROMPTS, CHANCE).at(share)
        <= best_share(server, PROMPTS, ANSWERS, CHANCE).at(share) + 1e-9
    )
