from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.core.cost import Regime
from serve_app.core.latency import LinearTtft
from serve_app.core.schedule import NEVER, Delays
from serve_app.sim.oracle import oracle
from serve_app.sim.requests import BLOCK, Population, Requests
from serve_app.sim.vector import quantiles, replay, simulate

DEVICE = LinearTtft(1 / 50, 0.3)
POPULATION = Population(np.random.default_rng(1).exponential(0.6, 400), np.arange(5, 205), np.arange(1, 201), DEVICE)


def requests(prompts: list[int], ttfts: list[float]) -> Requests:
    n = len(prompts)
    return Requests(np.array(prompts), np.full(n, 100), np.array(ttfts), np.zeros(n))


def delays(server: list[float], device: list[float]) -> Delays:
    return Delays(np.array(server), np.array(device))


def test_a_hedge_starts_only_if_no_token_has_come_by_then() -> None:
    # T_d = 0.5 s for 10 tokens. The third answer comes at the very instant the device would start.
    played = replay(requests([10] * 3, [2.0, 0.2, 0.4]), delays([0, 0, 0], [0.4, 0.4, 0.4]), DEVICE)
    assert played.ttft.tolist() == pytest.approx([0.9, 0.2, 0.4])
    assert played.device_started.tolist() == [True, False, False]
    assert played.device_won.tolist() == [True, False, False]
    assert played.server_started.all()


def test_the_server_may_be_the_later_side() -> None:
    played = replay(requests([10, 100], [0.1, 0.1]), delays([0.6, 0.6], [0, 0]), DEVICE)
    assert played.ttft.tolist() == pytest.approx([0.5, 0.7])
    assert played.server_started.tolist() == [False, True]


def test_one_side_alone_and_a_race() -> None:
    played = replay(requests([10] * 3, [0.4] * 3), delays([0, NEVER, 0], [NEVER, 0, 0]), DEVICE)
    assert played.ttft.tolist() == pytest.approx([0.4, 0.5, 0.4])
    assert played.server_started.tolist() == [True, False, True]
    assert played.device_started.tolist() == [False, True, True]
    assert played.started(Regime.DEVICE_CONSTRAINED).tolist() == [False, True, True]
    assert played.started(Regime.SERVER_CONSTRAINED).tolist() == [True, False, True]


def test_a_request_that_starts_nowhere_is_an_error() -> None:
    with pytest.raises(ValueError, match="must start somewhere"):
        replay(requests([10], [0.4]), delays([NEVER], [NEVER]), DEVICE)


TIMES = st.one_of(st.just(0.0), st.just(NEVER), st.floats(0, 5))


@given(st.lists(st.tuples(st.integers(1, 300), st.floats(0, 5), TIMES, TIMES), min_size=1, max_size=30))
def test_replay_equals_the_story_told_request_by_request(rows: list[tuple[int, float, float, float]]) -> None:
    rows = [row for row in rows if min(row[2], row[3]) < NEVER] or [(1, 0.0, 0.0, 0.0)]
    prompts, ttfts, server, device = (list(column) for column in zip(*rows, strict=True))
    played = replay(requests(prompts, ttfts), delays(server, device), DEVICE)
    for rank, (length, t_s, s, d) in enumerate(rows):
        t_d = DEVICE.predict(length)
        first, second = sorted([(s, t_s, "server"), (d, t_d, "device")])
        started = {first[2]}
        answers = [first[0] + first[1]]
        if second[0] < NEVER and (second[0] == first[0] or answers[0] > second[0]):
            started.add(second[2])
            answers.append(second[0] + second[1])
        assert played.ttft[rank] == pytest.approx(min(answers))
        assert played.server_started[rank] == ("server" in started)
        assert played.device_started[rank] == ("device" in started)


def test_quantiles_are_samples() -> None:
    values = np.random.default_rng(3).permutation(np.arange(1.0, 101.0))
    assert quantiles(values, (0.5, 0.99, 1.0, 0.0)) == [50, 99, 100, 1]


def test_the_same_seed_draws_the_same_requests() -> None:
    first, second = ([*POPULATION.blocks(BLOCK + 10, seed=5)] for _ in range(2))
    assert [len(block) for block in first] == [BLOCK, 10]
    for one, other in zip(first, second, strict=True):
        assert np.array_equal(one.server_ttft, other.server_ttft)
        assert np.array_equal(one.u, other.u)


def test_a_summary_is_what_its_requests_add_up_to() -> None:
    blocks = [*POPULATION.blocks(5000, seed=9)]
    outcome = simulate(
        blocks, lambda r: Delays(np.zeros(len(r)), np.where(r.u < 0.25, 0.2, NEVER)), DEVICE, Regime.DEVICE_CONSTRAINED
    )
    (block,) = blocks
    hedged = (block.u < 0.25) & (block.server_ttft > 0.2)
    assert outcome.summary.device_started == pytest.approx(hedged.mean())
    assert outcome.summary.spent == pytest.approx(block.prompt_tokens[hedged].sum() / block.prompt_tokens.sum())
    assert outcome.summary.mean == pytest.approx(float(outcome.ttft.mean()), rel=1e-5)
    assert outcome.summary.p99 == np.sort(outcome.ttft)[math.ceil(0.99 * 5000) - 1]


@pytest.mark.parametrize("regime", list(Regime))
@pytest.mark.parametrize("budget", [0.0, 0.1, 0.5, 0.9])
def test_the_oracle_spends_no_more_and_beats_chance_and_every_threshold(regime: Regime, budget: float) -> None:
    (block,) = POPULATION.blocks(20_000, seed=2)
    best = replay(block, oracle(block, DEVICE, regime, budget), DEVICE)
    total = block.prompt_tokens.sum()
    assert block.prompt_tokens @ best.started(regime) <= budget * total

    def mean(dear: np.ndarray) -> float:
        cheap = np.zeros(len(block))
        late = np.where(dear, 0.0, NEVER)
        both = Delays(cheap, late) if regime is Regime.DEVICE_CONSTRAINED else Delays(late, cheap)
        return float(replay(block, both, DEVICE).ttft.mean())

    shortest, longest = np.argsort(block.prompt_tokens, kind="stable"), np.argsort(-block.prompt_tokens, kind="stable")
    for order in (shortest, longest, np.argsort(block.u)):
        dear = np.zeros(len(block), bool)
        dear[order] = np.cumsum(block.prompt_tokens[order]) <= budget * total
        assert best.ttft.mean() <= mean(dear) + 1e-12


def test_with_the_whole_budget_the_oracle_races_everything_that_gains() -> None:
    (block,) = POPULATION.blocks(1000, seed=2)
    played = replay(block, oracle(block, DEVICE, Regime.DEVICE_CONSTRAINED, 1.0), DEVICE)
    fastest = np.minimum(block.server_ttft, DEVICE.slope * block.prompt_tokens + DEVICE.intercept)
    assert played.ttft == pytest.approx(fastest)
