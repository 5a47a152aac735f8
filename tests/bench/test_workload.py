"""What a load test asks and when: the same every time, as long as it was measured, and clear about bad input."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from serve_app.bench.workload import Wish, plan
from serve_app.sim.tables import BadInput

WISH = Wish(requests=200, gap=0.5)


@pytest.mark.parametrize("arrivals", ["poisson", "azure"])
def test_arrivals_begin_at_once_and_have_the_distance_that_was_asked_for(arrivals: str) -> None:
    load = plan(replace(WISH, arrivals=arrivals, requests=5000))
    assert len(load) == 5000
    assert load.at[0] == 0.0
    assert (np.diff(load.at) >= 0).all()
    assert load.mean_gap == pytest.approx(0.5, rel=0.05)


def test_the_same_seed_asks_the_same_and_another_asks_other_things() -> None:
    first, again, other = (list(plan(replace(WISH, seed=seed)).requests()) for seed in (1, 1, 2))
    assert first == again
    assert [request.prompt for request in first] != [request.prompt for request in other]


def test_no_two_prompts_share_a_beginning_that_a_cache_could_know() -> None:
    prompts = [request.prompt for request in plan(WISH).requests()]
    assert len({prompt.partition(" ")[0] for prompt in prompts}) == len(prompts)


def test_prompts_are_about_as_long_as_they_were_measured() -> None:
    load = plan(replace(WISH, lengths="sharegpt"))
    long = [(r, n) for r, n in zip(load.requests(), load.prompt_tokens, strict=True) if n > 100]
    assert long
    for request, tokens in long:
        assert len(request.prompt.split()) == pytest.approx(tokens, abs=24)


def test_answers_have_a_limit() -> None:
    limits = [request.max_tokens for request in plan(replace(WISH, max_tokens=50)).requests()]
    assert max(limits) == 50
    assert min(limits) >= 1


def test_ones_own_question() -> None:
    assert {request.prompt for request in plan(replace(WISH, prompt="Why?")).requests()} == {"Why?"}


def test_a_duration_cuts_the_rest() -> None:
    load = plan(replace(WISH, duration=10.0))
    assert 0 < len(load) < 200
    assert load.at[-1] <= 10.0


def log(folder: Path, text: str) -> Wish:
    path = folder / "log.csv"
    path.write_text(text, "utf-8")
    return replace(WISH, arrivals=str(path), gap=None)


def test_a_log_is_replayed_as_it_came_with_its_own_lengths(tmp_path: Path) -> None:
    load = plan(log(tmp_path, "arrival_s,prompt_tokens,output_tokens\n100,10,5\n100.5,20,6\n103,30,400\n"))
    assert load.at.tolist() == [0.0, 0.5, 3.0]
    assert load.prompt_tokens.tolist() == [10, 20, 30]
    assert load.output_tokens.tolist() == [5, 6, 256]
    assert "log.csv as it came" in load.source


def test_a_log_may_be_stretched_and_cut(tmp_path: Path) -> None:
    wish = log(tmp_path, "arrival_s\n0\n1\n4\n9\n")
    assert plan(replace(wish, gap=2.0, requests=3)).at.tolist() == [0.0, 1.0, 4.0]
    assert plan(replace(wish, gap=1.0)).mean_gap == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        (replace(WISH, requests=0), "--requests"),
        (replace(WISH, prompt=" "), "--prompt: must not be empty"),
        (replace(WISH, gap=0.0), "--gap"),
        (replace(WISH, gap=float("nan")), "--gap"),
        (replace(WISH, duration=-1.0), "--duration"),
        (replace(WISH, arrivals="nothing"), "--arrivals: no pattern and no file is named nothing"),
        (replace(WISH, lengths="nothing"), "no profile and no file is named nothing"),
    ],
)
def test_bad_wishes_are_named(wish: Wish, words: str) -> None:
    with pytest.raises(BadInput) as caught:
        plan(wish)
    assert words in str(caught.value)


def test_a_log_that_goes_back_in_time(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="back in time"):
        plan(log(tmp_path, "arrival_s\n5\n1\n"))
