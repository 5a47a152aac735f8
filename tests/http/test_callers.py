"""How much of what a key allows is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.access_settings import KeyLimits, KeySettings, Scope
from serve_app.callers import EVERYBODY, Caller, Callers, RateWindow, callers_of
from serve_app.core.errors import AccessDenied, QuotaExceeded, RateLimited
from serve_app.keys import BadKeys, new_key, sha256_of
from serve_app.settings import AppSettings
from serve_app.spending import SpendingFile

#: One hour before midnight in UTC.
EVENING = 1_767_654_000.0


@pytest.fixture
def spending(tmp_path: Path) -> Iterator[SpendingFile]:
    with closing(SpendingFile(tmp_path, lambda: EVENING)) as file:
        yield file


def test_everybody_may_do_anything() -> None:
    with ExitStack() as streams:
        for _ in range(1000):
            EVERYBODY.enter()
            streams.enter_context(EVERYBODY.stream())
        EVERYBODY.charge(1e9)
    EVERYBODY.enter()


# --- requests per minute ---


def test_a_request_too_many_is_told_when_to_come_back_and_does_not_count() -> None:
    now = 100.0
    caller = Caller("alice", KeyLimits(requests_per_minute=2), now=lambda: now)
    caller.enter()
    now = 130.0
    caller.enter()
    for now in (131.0, 159.5):
        with pytest.raises(RateLimited) as limited:
            caller.enter()
        assert limited.value.retry_after == 160.0 - now
    now = 160.0
    caller.enter()


@given(st.integers(1, 5), st.lists(st.floats(0, 40), max_size=40))
def test_no_minute_holds_more_than_the_limit_and_whoever_waits_as_told_is_let_in(limit: int, gaps: list[float]) -> None:
    window, now, let_in = RateWindow(limit), 0.0, []
    for gap in gaps:
        now += gap
        wait = window.take(now)
        if wait > 0:
            assert wait <= 60.0 + 1e-9
            now += wait
            while (wait := window.take(now)) > 0:  # what rounding left
                assert wait < 1e-9
                now += 1e-9
        let_in.append(now)
    assert all(later - earlier > 60.0 - 1e-6 for earlier, later in zip(let_in, let_in[limit:], strict=False))


# --- streams ---


def test_answers_under_way_are_bounded_and_their_places_return() -> None:
    caller = Caller("alice", KeyLimits(streams=2))
    with caller.stream():
        broken = caller.stream()
        broken.__enter__()
        with pytest.raises(RateLimited), caller.stream():
            raise AssertionError("a third one")
        assert not broken.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
        with caller.stream():
            pass


@given(st.integers(1, 5), st.data())
def test_routers_together_never_grant_more_than_the_limit_and_each_of_them_something(
    routers: int, data: st.DataObject
) -> None:
    streams, requests = data.draw(st.integers(routers, 20)), data.draw(st.integers(routers, 20))
    limits = KeyLimits(streams=streams, requests_per_minute=requests)
    replicas = [Caller("alice", limits, now=lambda: 0.0, routers=routers) for _ in range(routers)]
    with ExitStack() as running:
        under_way = [how_often(lambda c=c: running.enter_context(c.stream()), f"{streams} answers") for c in replicas]
        let_in = [how_often(c.enter, f"{requests} requests") for c in replicas]
    for granted, limit in ((under_way, streams), (let_in, requests)):
        assert min(granted) >= 1
        assert limit - routers < sum(granted) <= limit


def how_often(ask: Callable[[], object], refusal: str) -> int:
    """Until it is refused, so."""
    granted = count()
    with pytest.raises(RateLimited, match=refusal):
        all(ask() is not refusal for _ in granted)
    return next(granted) - 1


# --- budgets ---


def test_a_spent_budget_is_only_the_operators_to_renew(spending: SpendingFile) -> None:
    caller = Caller("alice", KeyLimits(usd=1.0), spending)
    caller.charge(0.75)
    caller.enter()
    caller.charge(0.25)
    with pytest.raises(QuotaExceeded) as spent:
        caller.enter()
    assert spent.value.retry_after is None
    Caller("bob", KeyLimits(usd=1.0), spending).enter()
    Caller("alice", KeyLimits(usd=1.5), spending).enter()


def test_a_days_budget_returns_with_the_next_day(tmp_path: Path) -> None:
    now = EVENING
    with closing(SpendingFile(tmp_path, lambda: now)) as spending:
        caller = Caller("alice", KeyLimits(usd_per_day=1.0, usd=10.0), spending)
        caller.charge(2.0)
        with pytest.raises(QuotaExceeded) as spent:
            caller.enter()
        assert spent.value.retry_after == 3600.0
        now += 3600.0
        caller.enter()


def test_a_budget_of_nothing_allows_nothing(spending: SpendingFile) -> None:
    with pytest.raises(QuotaExceeded):
        Caller("alice", KeyLimits(usd=0), spending).enter()


def test_a_request_that_the_budget_refuses_does_not_count_as_one_of_the_minute(spending: SpendingFile) -> None:
    limits = {"usd": 1.0, "requests_per_minute": 1}
    caller = Caller("alice", KeyLimits.model_validate(limits), spending)
    caller.charge(1.0)
    with pytest.raises(QuotaExceeded):
        caller.enter()
    richer = Caller("bob", KeyLimits.model_validate(limits), spending)
    richer.enter()
    with pytest.raises(RateLimited):
        richer.enter()
    with pytest.raises(QuotaExceeded):
        caller.enter()


# --- as configured ---


def app(**access: Any) -> AppSettings:
    endpoints = {"phone": {"kind": "device", "engine": {"type": "simulated"}}}
    return AppSettings.model_validate({"endpoints": endpoints, "access": access})


def budgeted(**access: Any) -> AppSettings:
    return app(keys={"alice": {"sha256": "0" * 64, "usd": 1.0}}, **access)


def test_without_keys_there_are_no_callers() -> None:
    assert callers_of(app()) is None


def test_a_budget_without_a_place_to_write_it_down_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadKeys, match="spending_folder"):
        callers_of(budgeted())
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(BadKeys, match="spending_folder"):
            callers_of(budgeted(spending_folder=str(folder)))
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(BadKeys, match="chmod"):
        callers_of(budgeted(spending_folder=str(tmp_path / "open")))
    callers = callers_of(budgeted(spending_folder=str(tmp_path / "new" / "deep")))
    assert callers is not None
    callers.close()


# --- scopes ---


def test_each_key_opens_what_its_scope_says_and_nothing_else() -> None:
    scopes: tuple[Scope, ...] = get_args(Scope)
    keys = {scope: new_key() for scope in scopes}
    callers = Callers({scope: KeySettings(sha256=sha256_of(key.encode()), scope=scope) for scope, key in keys.items()})
    for scope, key in keys.items():
        header = [f"Bearer {key}"]
        assert callers.identify(header, scope).grant.key == scope
        for other in set(scopes) - {scope}:
            with pytest.raises(AccessDenied, match="nothing else"):
                callers.identify(header, other)
