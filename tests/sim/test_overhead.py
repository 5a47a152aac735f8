from __future__ import annotations

from serve_app.sim.overhead import Overhead, measure
from serve_app.sim.policies import DISCO_D, DISCO_D_STAR, DISCO_S, DISCO_S_STAR
from serve_app.sim.verdicts import judge_overhead


def test_every_policy_s_refit_and_decision_is_timed() -> None:
    measured = measure(samples=500, rounds=3)
    assert [one.policy for one in measured] == [DISCO_D, DISCO_D_STAR, DISCO_S, DISCO_S_STAR]
    # A refit looks at every sample, a decision at one row of a table.
    assert all(one.refit > one.decision > 0 for one in measured)


def test_a_refit_or_a_decision_that_takes_too_long_is_a_miss() -> None:
    fast, refit, decision = (Overhead("one", *seconds) for seconds in ((9e-4, 4e-6), (2e-3, 4e-6), (9e-4, 9e-6)))
    lines = judge_overhead([fast, refit, decision], 100_000)
    assert [line.met for line in lines] == [True, False, False]
    assert lines[1].figure == "2.00 ms, 4.0 us"
    assert "100,000 raw" in lines[0].claim
