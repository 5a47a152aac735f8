"""One budget over prefill and decode: the same fits, with what the constrained side decodes on their cost side."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.core.handover import Decode
from serve_app.core.latency import EmpiricalTtft, LinearTtft
from serve_app.core.lengths import LengthDistribution
from serve_app.core.optimal_threshold import RaceTable, fit_optimal_threshold
from serve_app.core.optimal_waits import fit_optimal_waits
from serve_app.core.wait_time import WaitTable

ttfts = st.lists(st.floats(0.01, 20), min_size=5, max_size=40).map(EmpiricalTtft)
prompts = st.lists(st.integers(1, 400), min_size=5, max_size=40).map(LengthDistribution.of_samples)
devices = st.builds(LinearTtft, st.floats(0.001, 0.05), st.floats(0, 2))
decodes = st.builds(Decode, st.floats(0, 50), st.floats(50, 500))


def device_side(
    table: WaitTable, ttft: EmpiricalTtft, lengths: LengthDistribution, device: LinearTtft, owned: float
) -> float:
    """Tokens per request that the device processes, as the fit expects them."""

    def spend(waits: np.ndarray) -> float:
        late = 1 - ttft.answered(waits)
        won = 1 - ttft.answered(waits + device.slope * lengths.lengths + device.intercept)
        never = np.isinf(waits)
        late[never] = won[never] = 0.0
        # The device that starts at once starts whatever the server does.
        late[waits == 0] = 1.0
        return float(lengths.probabilities @ (lengths.lengths * late + owned * won))

    delays = [table.delays(lengths.lengths, np.full(lengths.lengths.size, u)).device for u in (0.0, 1.0)]
    return table.share * spend(delays[0]) + (1 - table.share) * spend(delays[1])


def mean_ttft(table: WaitTable, ttft: EmpiricalTtft, lengths: LengthDistribution, device: LinearTtft) -> float:
    def mean(u: float) -> float:
        waits = table.delays(lengths.lengths, np.full(lengths.lengths.size, u)).device
        deadlines = waits + device.slope * lengths.lengths + device.intercept
        shown = np.minimum(ttft.samples[None, :], deadlines[:, None]).mean(axis=1)
        return float(lengths.probabilities @ shown)

    return table.share * mean(0.0) + (1 - table.share) * mean(1.0)


def server_side(
    table: RaceTable, ttft: EmpiricalTtft, lengths: LengthDistribution, device: LinearTtft, owned: float
) -> float:
    won = ttft.answered(device.slope * lengths.lengths + device.intercept)
    return float(lengths.probabilities @ (table.shares * (lengths.lengths + owned * won)))


@given(ttfts, prompts, devices, st.floats(0, 1), decodes)
def test_the_device_s_budget_holds_with_what_it_decodes(
    ttft: EmpiricalTtft, lengths: LengthDistribution, device: LinearTtft, budget: float, decode: Decode
) -> None:
    table = fit_optimal_waits(ttft, lengths, device, budget, decode)
    spent = device_side(table, ttft, lengths, device, decode.owned)
    assert spent <= budget * (lengths.mean + decode.answer) * (1 + 1e-6) + 1e-9


@given(ttfts, prompts, devices, st.floats(0, 1), decodes, st.booleans())
def test_the_server_s_budget_holds_with_what_it_decodes(
    ttft: EmpiricalTtft, lengths: LengthDistribution, device: LinearTtft, budget: float, decode: Decode, guard: bool
) -> None:
    table = fit_optimal_threshold(ttft, lengths, device, budget, decode, tail_guard=guard)
    spent = server_side(table, ttft, lengths, device, decode.owned)
    assert spent <= budget * (lengths.mean + decode.answer) * (1 + 1e-6) + 1e-9


@given(ttfts, prompts, devices, st.floats(0, 1), st.floats(1, 50), st.floats(50, 500))
def test_leaving_early_never_makes_the_same_budget_worth_less(
    ttft: EmpiricalTtft, lengths: LengthDistribution, device: LinearTtft, budget: float, owned: float, answer: float
) -> None:
    early = fit_optimal_waits(ttft, lengths, device, budget, Decode(owned, answer))
    whole = fit_optimal_waits(ttft, lengths, device, budget, Decode(answer, answer))
    assert mean_ttft(early, ttft, lengths, device) <= mean_ttft(whole, ttft, lengths, device) * (1 + 1e-3) + 1e-9


def test_it_buys_far_more_races() -> None:
    ttft = EmpiricalTtft(np.linspace(0.3, 3.0, 200))
    lengths = LengthDistribution.of_samples([8, 14, 14, 18, 31])
    device = LinearTtft(0.02, 0.1)
    budget = 0.05
    early = fit_optimal_waits(ttft, lengths, device, budget, Decode(12, 340))
    whole = fit_optimal_waits(ttft, lengths, device, budget, Decode(340, 340))
    cut = 1 - mean_ttft(early, ttft, lengths, device) / mean_ttft(whole, ttft, lengths, device)
    assert cut > 0.25
    assert device_side(early, ttft, lengths, device, 12) == pytest.approx(budget * (lengths.mean + 340), rel=0.02)
