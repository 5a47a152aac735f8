from __future__ import annotations

import re
from itertools import pairwise

import pytest

from actors.engines.profiles import CloudProfile, DeviceProfile, known_profiles, load_profile

PROFILES = [load_profile(name) for name in known_profiles()]
CLOUDS = [profile for profile in PROFILES if isinstance(profile, CloudProfile)]
DEVICES = [profile for profile in PROFILES if isinstance(profile, DeviceProfile)]


def test_there_is_something_on_both_sides():
    assert len(CLOUDS) >= 5
    assert len(DEVICES) >= 5
    assert len(set(known_profiles())) == len(PROFILES)


@pytest.mark.parametrize("profile", CLOUDS, ids=lambda profile: profile.name)
def test_quantiles_are_a_distribution(profile: CloudProfile):
    assert profile.probabilities[0] == 0
    assert profile.probabilities[-1] == 1
    assert all(low < high for low, high in pairwise(profile.probabilities))
    for table in (profile.ttft, profile.tbt):
        assert len(table) == len(profile.probabilities)
        assert table[0] > 0
        assert all(low <= high for low, high in pairwise(table))
    assert 5 < profile.decode_rate < 250


@pytest.mark.parametrize("profile", CLOUDS, ids=lambda profile: profile.name)
def test_samples_carry_the_distribution(profile: CloudProfile):
    samples = profile.ttft_samples(200)
    assert list(samples) == sorted(samples)
    assert samples[0] >= profile.ttft[0]
    assert samples[-1] <= profile.ttft[-1]
    assert samples[100] == pytest.approx(profile.ttft_at(0.5), rel=0.02)


@pytest.mark.parametrize("profile", DEVICES, ids=lambda profile: profile.name)
def test_devices_are_linear_and_of_a_phones_speed(profile: DeviceProfile):
    assert 30 <= profile.prefill_rate <= 81
    assert 10 <= profile.decode_rate <= 25
    assert profile.ttft(0) == profile.intercept
    assert profile.ttft(100) - profile.ttft(40) == pytest.approx(60 * profile.slope)


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_every_profile_says_where_it_comes_from(profile: CloudProfile | DeviceProfile):
    given = profile.provenance
    assert len(given.source) > 20
    assert re.match(r"20\d\d", given.date)
    assert given.licence
    assert given.samples is None or given.samples >= 30


def test_figures_of_the_papers_devices_are_marked_unverified():
    for name in ("pixel7pro-bloom-1.1b", "pixel7pro-bloom-560m", "xiaomi14-qwen1.5-0.5b"):
        assert "unverified" in load_profile(name).provenance.source


def test_quantiles_between_the_tables_rows_are_interpolated():
    replicate = load_profile("replicate-llama2-70b")
    assert isinstance(replicate, CloudProfile)
    assert replicate.ttft_at(0.95) < replicate.ttft_at(0.97) < replicate.ttft_at(0.99)
    assert replicate.ttft_at(0.9) > 8 * replicate.ttft_at(0.5)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"engine\.profile.*'nokia-3310'.*s23-gemma3-1b-q4"):
        load_profile("nokia-3310")
