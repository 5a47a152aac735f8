from __future__ import annotations

import numpy as np
import pytest

from actors.engines.llama_sampler import Sampler
from serve_app.core.model import Sampling

LOGITS = np.log(np.array([0.05, 0.5, 0.15, 0.3], dtype=np.float32))


def draws(count: int, logits: np.ndarray = LOGITS, **settings: float) -> list[int]:
    sampler = Sampler(Sampling(max_tokens=count, **({"seed": 11} | settings)))
    return [sampler.choose(logits) for _ in range(count)]


def shares(chosen: list[int], size: int = 4) -> list[float]:
    return [count / len(chosen) for count in np.bincount(chosen, minlength=size)]


def test_temperature_zero_takes_the_likeliest_and_the_first_of_equals():
    assert draws(3, temperature=0.0) == [1, 1, 1]
    assert draws(1, np.zeros(5, np.float32), temperature=0.0) == [0]


def test_temperature_one_follows_the_models_distribution():
    assert shares(draws(8000)) == pytest.approx([0.05, 0.5, 0.15, 0.3], abs=0.02)


def test_temperature_sharpens_and_flattens():
    squared = np.array([0.05, 0.5, 0.15, 0.3]) ** 2
    assert shares(draws(8000, temperature=0.5)) == pytest.approx(list(squared / squared.sum()), abs=0.02)
    assert shares(draws(8000, temperature=2.0))[0] > 0.1
    assert draws(50, temperature=1e-300) == [1] * 50


@pytest.mark.parametrize(("top_p", "kept"), [(0.4, {1}), (0.49, {1}), (0.51, {1, 3}), (0.8, {1, 3}), (0.95, {1, 2, 3})])
def test_top_p_keeps_the_fewest_that_reach_it(top_p: float, kept: set[int]):
    assert set(draws(2000, top_p=top_p)) == kept


def test_top_p_zero_is_greedy():
    assert set(draws(50, top_p=0.0)) == {1}


def test_a_nucleus_wider_than_the_first_guess_is_complete():
    flat = np.zeros(5000, np.float32)
    assert len(set(draws(4000, flat, top_p=0.5))) > 1200
    assert max(draws(4000, flat, top_p=0.5)) < 2500


def test_seeds_make_draws_repeatable():
    assert draws(40) == draws(40)
    assert draws(40, seed=1) != draws(40, seed=2)
    assert draws(40, seed=-1) == draws(40, seed=-1) != draws(40, seed=1)


def test_penalties_count_what_was_chosen_and_accepted():
    settings = Sampling(max_tokens=9, temperature=0.0, presence_penalty=0.3, frequency_penalty=0.4)
    alone = Sampler(settings)
    chosen = [alone.choose(LOGITS) for _ in range(9)]
    assert chosen[:3] == [1, 3, 1]
    for cut in range(9):
        later = Sampler(settings, chosen[:cut])
        assert [later.choose(LOGITS) for _ in range(9 - cut)] == chosen[cut:]


def test_the_logits_are_left_as_they_are():
    logits = LOGITS.copy()
    draws(5, logits, presence_penalty=1.0, top_p=0.9)
    assert (logits == LOGITS).all()
