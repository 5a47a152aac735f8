from __future__ import annotations

import math

from serve_app.core.watch import ENDLESS, FLOOR, UNWATCHED, Patience, patience_of

LIMITS = Patience(30.0, 5.0)


def test_patience_is_a_multiple_of_what_is_usual_plus_the_queue() -> None:
    assert patience_of(Patience(2.0, 1.0), 3.0, 0.5, LIMITS) == (6.5, 3.0)


def test_a_hiccup_is_never_suspicious() -> None:
    assert patience_of(Patience(0.01, 0.01), 3.0, 0.0, LIMITS) == (FLOOR, FLOOR)


def test_at_the_configured_limits_there_is_nothing_left_to_suspect() -> None:
    assert patience_of(Patience(10.0, 2.0), 3.0, 0.0, LIMITS) == (math.inf, math.inf)
    assert patience_of(ENDLESS, 3.0, 0.0, LIMITS) == (math.inf, math.inf)


def test_without_a_factor_nothing_is_suspicious() -> None:
    assert patience_of(Patience(2.0, 1.0), None, 0.0, LIMITS) == ENDLESS


def test_what_nobody_watches_is_neither_suspected_nor_sick() -> None:
    assert UNWATCHED.patience("cloud", 10) == ENDLESS
    assert not UNWATCHED.is_sick("cloud")
