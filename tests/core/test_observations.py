from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.core.latency import EmpiricalTtft, LatencyProfile, LinearTtft
from serve_app.core.observations import ENOUGH, ENOUGH_FOR_MEDIAN, EndpointObservations, Habits, theil_sen_slope

LINE = LinearTtft(slope=0.01, intercept=0.4)
DEVICE = LatencyProfile(LINE, prefill_rate=100.0, decode_rate=14.0)
SERVER = LatencyProfile(EmpiricalTtft(np.linspace(0.2, 0.6, 100)), prefill_rate=1e6, decode_rate=50.0)

events = st.lists(
    st.tuples(st.integers(0, 5000), st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf, -math.inf])),
    max_size=60,
)


def seen(prior: LatencyProfile, ttfts: list[tuple[int, float]], window: int = 500) -> EndpointObservations:
    observations = EndpointObservations(prior, window)
    for prompt_tokens, ttft in ttfts:
        observations.first_token(prompt_tokens, ttft)
    return observations


def line_of(observations: EndpointObservations) -> LinearTtft:
    ttft = observations.profile().ttft
    assert isinstance(ttft, LinearTtft)
    return ttft


def samples_of(observations: EndpointObservations) -> list[float]:
    ttft = observations.profile().ttft
    assert isinstance(ttft, EmpiricalTtft)
    return ttft.samples.tolist()


# --- servers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prior", [DEVICE, SERVER])
def test_unseen_is_as_before(prior: LatencyProfile) -> None:
    assert EndpointObservations(prior, 500).profile() == LatencyProfile(
        prior.ttft, prior.prefill_rate, prior.decode_rate
    )


def test_a_server_is_learnt_step_by_step_and_then_from_observations_alone() -> None:
    shares = []
    for count in (3, 15, ENOUGH, ENOUGH + 20):
        samples = samples_of(seen(SERVER, [(60, 2.0)] * count))
        shares.append((samples.count(2.0), len(samples)))
    assert shares == [(3, 30), (15, 30), (30, 30), (50, 50)]


def test_the_prior_that_fills_up_keeps_its_shape() -> None:
    filled = [x for x in samples_of(seen(SERVER, [(60, 9.0)] * 10)) if x < 9.0]
    assert np.mean(filled) == pytest.approx(0.4, abs=0.01)
    assert (min(filled), max(filled)) == (pytest.approx(0.21, abs=0.01), pytest.approx(0.59, abs=0.01))


def test_the_window_forgets_a_regime_that_is_over() -> None:
    observations = seen(SERVER, [(60, 0.3)] * 200 + [(60, 4.0)] * 40, window=40)
    assert set(samples_of(observations)) == {4.0}


def test_a_server_that_is_modelled_as_a_line_still_has_a_distribution() -> None:
    lengths = (10, 60)
    assert EndpointObservations(DEVICE, 500).ttft_distribution(lengths).samples.tolist() == [0.5, 1.0]
    jittery = seen(DEVICE, [(60, 0.1 * (1 + i % 5)) for i in range(ENOUGH)])
    assert jittery.ttft_distribution(lengths).quantile(1.0) == 0.5


# --- devices --------------------------------------------------------------------------------------------------------


def test_a_device_is_learnt_from_prompts_of_different_lengths() -> None:
    rng = np.random.default_rng(7)
    lengths = rng.integers(20, 600, 60).tolist()
    observations = seen(DEVICE, [(length, 0.2 + 0.03 * length + float(rng.normal(0, 0.02))) for length in lengths])
    line = line_of(observations)
    assert line.slope == pytest.approx(0.03, rel=0.02)
    assert line.intercept == pytest.approx(0.2, abs=0.05)
    assert observations.profile().prefill_rate == pytest.approx(1 / line.slope)


@pytest.mark.parametrize("seed", range(5))
def test_a_fifth_of_outliers_does_not_bend_the_line(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(20, 600, 60).tolist()
    ttfts = [(length, 0.2 + 0.03 * length + (30.0 if i % 5 == 0 else 0.0)) for i, length in enumerate(lengths)]
    line = line_of(seen(DEVICE, ttfts))
    assert line.slope == pytest.approx(0.03, rel=0.1)
    assert line.predict(300) == pytest.approx(9.2, rel=0.1)


@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param([10, 100, 400], id="too few"),
        pytest.param([60] * 20, id="all equal"),
        pytest.param([60, 200] * 10, id="two lengths"),
        pytest.param([60, 61, 62, 63] * 10, id="narrow"),
        pytest.param([60, 61, 62, 63] * 10 + [4000], id="narrow but for one"),
    ],
)
def test_without_a_range_of_lengths_the_slope_stays_as_believed(lengths: list[int]) -> None:
    rng = np.random.default_rng(3)
    line = line_of(seen(DEVICE, [(length, 1.0 + 0.01 * length + float(rng.uniform(0, 0.3))) for length in lengths]))
    assert line.slope == LINE.slope


def test_eight_observations_of_three_lengths_of_which_the_longest_is_twice_the_shortest_suffice() -> None:
    line = line_of(seen(DEVICE, [(length, 0.2 + 0.03 * length) for length in (40, 40, 60, 60, 60, 80, 80, 80)]))
    assert line == LinearTtft(pytest.approx(0.03), pytest.approx(0.2))


def test_only_the_newest_observations_bend_a_line() -> None:
    old = [(length, 9.0) for length in range(20, 420)]
    new = [(length, 0.2 + 0.03 * length) for length in range(20, 420, 2)]
    assert line_of(seen(DEVICE, old + new)) == LinearTtft(pytest.approx(0.03), pytest.approx(0.2))


def test_the_intercept_follows_even_so() -> None:
    assert line_of(seen(DEVICE, [(60, 2.0)] * 20)).predict(60) == pytest.approx(2.0)


def test_a_cold_start_does_not_mislead() -> None:
    assert line_of(seen(DEVICE, [(60, 25.0), (60, 24.0), (60, 1.0)])) == LINE


def test_the_prior_of_a_device_fades() -> None:
    intercepts = [line_of(seen(DEVICE, [(60, 2.0)] * n)).intercept for n in range(ENOUGH_FOR_MEDIAN + 1)]
    assert intercepts == sorted(intercepts)
    assert intercepts[-1] == pytest.approx(1.4)


def test_a_device_faster_than_the_believed_slope_allows() -> None:
    line = line_of(seen(DEVICE, [(60, 0.12), (62, 0.124)] * 10))
    assert line == LinearTtft(pytest.approx(0.002), 0.0)


def test_a_prompt_without_tokens_counts_as_one_token() -> None:
    line = line_of(seen(DEVICE, [(0, 0.002)] * 4 + [(60, 0.12)] * 16))
    assert line == LinearTtft(pytest.approx(0.002), 0.0)


def test_a_falling_line_is_flat() -> None:
    observations = seen(DEVICE, [(length, 8.0 - 0.01 * length) for length in range(10, 410, 10)])
    line = line_of(observations)
    assert line.slope == 0.0
    assert line.intercept == pytest.approx(8.0 - 2.05)
    assert observations.profile().prefill_rate == DEVICE.prefill_rate


def test_slope_of_an_exact_line_with_repeated_lengths() -> None:
    x = np.array([10.0, 10.0, 20.0, 30.0])
    assert theil_sen_slope(x, 2 * x + 1) == pytest.approx(2.0)


# --- decode rates and bounds ----------------------------------------------------------------------------------------


def test_the_decode_rate_is_the_median_once_there_are_enough() -> None:
    observations = EndpointObservations(DEVICE, 500)
    for _ in range(3):
        observations.decoded(60, 2.0)
    assert observations.profile().decode_rate == 14.0
    for tokens in (60, 60, 60, 60, 600):
        observations.decoded(tokens, 2.0)
    assert observations.profile().decode_rate == 30.0


@pytest.mark.parametrize(("tokens", "elapsed"), [(0, 1.0), (5, 0.0), (5, -1.0), (5, math.inf), (5, math.nan)])
def test_impossible_decode_observations_are_ignored(tokens: int, elapsed: float) -> None:
    observations = EndpointObservations(DEVICE, 500)
    for _ in range(20):
        observations.decoded(tokens, elapsed)
    assert observations.profile().decode_rate == 14.0


@pytest.mark.parametrize("ttft", [math.nan, math.inf, -math.inf])
def test_impossible_ttfts_are_ignored(ttft: float) -> None:
    assert seen(SERVER, [(60, ttft)] * 40).profile() == SERVER


def test_a_hair_below_zero_is_zero() -> None:
    assert samples_of(seen(SERVER, [(60, -1e-4)] * ENOUGH)) == [0.0] * ENOUGH


@settings(deadline=None)
@given(events, events)
def test_any_observation_gives_a_usable_profile(
    ttfts: list[tuple[int, float]], decodes: list[tuple[int, float]]
) -> None:
    for prior in (DEVICE, SERVER):
        observations = seen(prior, ttfts)
        for tokens, elapsed in decodes:
            observations.decoded(tokens, elapsed)
        profile = observations.profile()
        assert 0 <= profile.expected_ttft(1) <= profile.expected_ttft(5000)
        assert profile.prefill_rate > 0
        assert profile.decode_rate > 0


# --- windows -----------------------------------------------------------------------------------


def test_a_smaller_window_keeps_the_newest() -> None:
    observations = seen(SERVER, [(60, float(i)) for i in range(100)])
    for i in range(100):
        observations.decoded(i + 1, 1.0)
    observations.resize(ENOUGH)
    assert samples_of(observations) == [float(i) for i in range(70, 100)]
    assert observations.profile().decode_rate == pytest.approx(85.5)


def test_what_is_late_takes_some_observations_to_tell() -> None:
    few = [(50, 0.9)] * (ENOUGH_FOR_MEDIAN - 1)
    for prior in (DEVICE, SERVER):
        assert seen(prior, few).seldom_later(0.95) is None
        assert seen(prior, [*few, (50, 0.9)]).seldom_later(0.95) is not None


def test_a_server_is_late_whatever_the_prompt_and_a_device_by_how_far_it_falls_behind_its_line() -> None:
    server = seen(SERVER, [(50, rank / 100) for rank in range(1, 100)]).seldom_later(0.95)
    assert server == LinearTtft(0.0, 0.95)
    device = seen(DEVICE, [(50, LINE.predict(50) + 0.1 * (rank % 10 == 9)) for rank in range(40)]).seldom_later(0.95)
    assert device is not None
    assert device.slope == LINE.slope
    assert device.intercept == pytest.approx(LINE.intercept + 0.1)


# --- habits ---------------------------------------------------------------------------------------------------------


def habits(prior: LatencyProfile, ttfts: list[tuple[int, float]], silences: list[float]) -> Habits:
    observations = seen(prior, ttfts)
    for seconds in silences:
        observations.was_silent(seconds)
    return observations.usual(observations.profile())


def test_nobody_has_habits_before_enough_was_seen() -> None:
    few = [(100, 0.5)] * (ENOUGH - 1), [0.1] * (ENOUGH - 1)
    for prior in (SERVER, DEVICE):
        assert habits(prior, *few).patience(100) == (math.inf, math.inf)


def test_a_server_s_habit_is_the_slowest_of_a_hundred_whatever_the_prompt() -> None:
    usual = habits(SERVER, [(7 * rank, rank / 100) for rank in range(1, 101)], [rank / 10 for rank in range(1, 101)])
    assert usual.patience(10) == usual.patience(5000) == (0.99, 9.9)


def test_a_device_takes_longer_for_longer_prompts() -> None:
    usual = habits(DEVICE, [(10 * rank, 0.5 + 0.1 * rank) for rank in range(1, 101)], [0.1] * ENOUGH)
    assert usual.patience(100) == pytest.approx((1.5, 0.1))
    assert usual.patience(1000) == pytest.approx((10.5, 0.1))


def test_what_was_not_waited_for_is_taken_to_be_like_what_took_longer() -> None:
    observations = seen(SERVER, [(50, 1.0)] * 30 + [(50, seconds) for seconds in (4.0, 6.0, 8.0)])
    for _ in range(3):
        observations.first_token(50, 2.0, came=False)
    assert samples_of(observations) == [1.0] * 30 + [4.0, 4.0, 6.0, 6.0, 8.0, 8.0]


def test_what_was_not_waited_for_and_is_longer_than_any_counts_as_it_is() -> None:
    observations = seen(SERVER, [(50, 1.0)] * 30)
    observations.first_token(50, 5.0, came=False)
    assert samples_of(observations) == [1.0] * 30 + [5.0]


@pytest.mark.parametrize("heard", ["left out", "as long as it was waited for", "as it is"])
def test_a_tail_that_was_cut_off_is_seen_nearly_whole(heard: str) -> None:
    """Half of the answers are listened to for .5 to 2 s only. To leave out the others hides the tail they have."""
    rng = np.random.default_rng(5)
    observations = EndpointObservations(SERVER, window=4000)
    drawn = rng.lognormal(-0.5, 1.0, 4000)
    for ttft, listening in zip(
        drawn, np.where(rng.random(4000) < 0.5, rng.uniform(0.5, 2.0, 4000), np.inf), strict=True
    ):
        if ttft <= listening:
            observations.first_token(50, ttft)
        elif heard != "left out":
            observations.first_token(50, listening, came=heard != "as it is")
    mean = EmpiricalTtft(samples_of(observations)).mean
    if heard == "as it is":
        assert mean == pytest.approx(drawn.mean(), rel=0.05)
    else:
        assert mean < 0.85 * drawn.mean()
