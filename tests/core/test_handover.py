from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from serve_app.core.handover import HandoverRule
from serve_app.core.latency import EmpiricalTtft, LatencyProfile, LinearTtft
from serve_app.core.migration import MigrationMode

SERVER = LatencyProfile(EmpiricalTtft(np.linspace(0.01, 1.0, 100)), 2000.0, 50.0)
DEVICE = LatencyProfile(LinearTtft(1 / 80, 1 / 20), 80.0, 20.0)
BREAK = HandoverRule(MigrationMode.BREAK, 5.0, 0.05)
OVERLAP = replace(BREAK, mode=MigrationMode.OVERLAP)


def test_the_trigger_is_the_paper_s_first_n() -> None:
    # l=60, r_g=50, r_c=5, t_net=.05, target prefill 80 tok/s, decode 20 tok/s: n=6, and not yet at n=5.
    assert 5 < BREAK.decoded(SERVER, DEVICE, 60, 1000) <= 6


def test_an_unpredictable_target_is_waited_for_longer() -> None:
    # t_m = .05 + 1 s, which one answer of 101 exceeds, whatever n: n (1 - 5/20) >= 5 x 1.05
    assert BREAK.decoded(DEVICE, SERVER, 60, 1000) == pytest.approx(5 * 1.05 / 0.75)


def test_in_overlap_the_source_goes_on_until_the_target_speaks() -> None:
    alone = BREAK.decoded(SERVER, DEVICE, 60, 1000)
    handover = 0.05 + (60 + alone) / 80 + 1 / 20
    assert OVERLAP.decoded(SERVER, DEVICE, 60, 1000) == pytest.approx(alone + 50 * handover)


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (HandoverRule(None, 5.0), SERVER),
        (HandoverRule(MigrationMode.BREAK, None), SERVER),
        (BREAK, replace(SERVER, decode_rate=5.0)),
        (BREAK, SERVER),
    ],
)
def test_it_is_the_whole_answer_where_nothing_moves_or_where_it_is_short(
    rule: HandoverRule, source: LatencyProfile
) -> None:
    assert rule.decoded(source, DEVICE, 60, 5) == 5
