from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.core.estimates import Estimates, Observation, Seen
from serve_app.core.latency import EmpiricalTtft, LatencyProfile, LinearTtft

PRIORS = {
    "cloud": LatencyProfile(EmpiricalTtft(np.linspace(0.2, 2.2, 101)), 1e6, 50.0),
    "phone": LatencyProfile(LinearTtft(0.03, 0.2), 33.0, 14.0),
}

observations = st.builds(
    Observation,
    st.sampled_from(Seen),
    st.integers(0, 3000),
    st.floats(0, 50),
    st.sampled_from(["cloud", "phone", "of another router"]),
)


def make(window: int = 40) -> Estimates:
    return Estimates(PRIORS, window)


def beliefs(estimates: Estimates) -> list[object]:
    estimates.refit()
    return [
        estimates.prompts.lengths.tolist(),
        estimates.answers.expected_remaining(0, 10**9),
        estimates.ttfts("cloud").samples.tolist(),
        estimates.profiles["cloud"].decode_rate,
        estimates.profiles["phone"],
        [estimates.usual(name, tokens) for name in PRIORS for tokens in (0, 100)],
    ]


@given(st.lists(observations, max_size=60), st.lists(observations, max_size=60))
def test_merged_is_as_if_one_had_seen_it_all(first: list[Observation], second: list[Observation]) -> None:
    here, there, alone = make(), make(), make()
    for seen in first:
        here.observe(seen)
    for seen in second:
        there.observe(seen)
    for seen in first + second:
        alone.observe(seen)
    here.merge(there.drain())
    assert beliefs(here) == beliefs(alone)


def test_what_is_handed_on_is_one_s_own_and_once() -> None:
    here = make()
    own, other = Observation(Seen.PROMPT, 7), Observation(Seen.ANSWER, 9)
    here.observe(own)
    here.merge([other])
    assert here.drain() == [own]
    assert here.drain() == []


def test_without_a_listener_memory_stays_bounded() -> None:
    here = make(window=10)
    for tokens in range(1000):
        here.observe(Observation(Seen.PROMPT, tokens))
    here.resize(5)
    assert [seen.tokens for seen in here.drain()] == list(range(980, 1000))


def test_beliefs_change_when_they_are_refitted() -> None:
    here = make()
    before = here.profiles["phone"].decode_rate
    for _ in range(20):
        here.observe(Observation(Seen.DECODED, 60, 2.0, "phone"))
    assert (here.profiles["phone"].decode_rate, here.news) == (before, 20)
    here.refit()
    assert (here.profiles["phone"].decode_rate, here.news) == (pytest.approx(30.0), 0)


def test_silences_make_no_policy_older() -> None:
    here = make()
    here.observe(Observation(Seen.SILENCE, 0, 0.5, "phone"))
    assert here.news == 0


def test_an_endpoint_that_joins_is_believed_to_be_as_its_prior_says_and_one_that_is_back_as_it_was() -> None:
    here, prior = make(), LatencyProfile(LinearTtft(0.01, 0.1), 100.0, 7.0)
    here.add("tablet", prior)
    assert here.profiles["tablet"] == prior
    assert here.usual("tablet", 10) == here.usual("phone", 10)
    for _ in range(40):
        here.observe(Observation(Seen.DECODED, 60, 2.0, "tablet"))
    here.refit()
    here.add("tablet", prior)
    assert here.profiles["tablet"].decode_rate == pytest.approx(30.0)
    here.forget("tablet")
    here.observe(Observation(Seen.DECODED, 60, 2.0, "tablet"))
    here.refit()
    assert "tablet" not in here.profiles
    here.add("tablet", prior)
    assert here.profiles["tablet"] == prior


def test_it_tells_how_many_first_tokens_were_seen_however_they_came() -> None:
    estimates = make(window=20)
    assert estimates.ttfts_seen("phone") == 0
    estimates.observe(Observation(Seen.FIRST_TOKEN, 10, 0.5, "phone"))
    estimates.merge([Observation(Seen.NO_TOKEN, 10, 0.9, "phone")])
    assert (estimates.ttfts_seen("phone"), estimates.ttfts_seen("cloud")) == (2, 0)
