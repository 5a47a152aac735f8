from __future__ import annotations

import pytest

from serve_app.core.candidates import Candidates, failures
from serve_app.core.cost import CostModel, UnitCost
from serve_app.core.latency import LatencyProfile, LinearTtft
from serve_app.core.legs import Leg, LegOutcome, LegReason
from serve_app.core.migration import MigrationMode, Mover, StreamState, Verdict
from serve_app.core.model import ContinuesBy, EndpointInfo
from tests.support.session_stage import CHEAP, CLOUD, DEAR, LAPTOP, PHONE, endpoint

STATE = StreamState(prompt_tokens=10, accepted=20, max_tokens=100, lead=9, rate=4.0, open_character=False)


def candidates(*infos: EndpointInfo, mode: MigrationMode | None = MigrationMode.BREAK, park: bool = True) -> Candidates:
    profile = LatencyProfile(LinearTtft(0.0, 1.0), 1000.0, 20.0)
    unit = {"cloud": DEAR, "phone": CHEAP, "laptop": UnitCost(0.0, 0.0)}
    mover = Mover(mode, 0.0, CostModel(unit), lambda _: profile, lambda n, top: float(top - n), lambda _: False)
    return Candidates(infos, mover, park=park)


def ended(info: EndpointInfo, outcome: LegOutcome = LegOutcome.FAILED) -> Leg:
    leg = Leg("a", info, LegReason.DISPATCH, 0.0)
    leg.end(outcome, 1.0)
    return leg


def test_it_is_a_mapping_best_first() -> None:
    some = candidates(PHONE, CLOUD)
    assert (list(some), len(some), some["cloud"]) == (["phone", "cloud"], 2, CLOUD)
    with pytest.raises(KeyError):
        some["laptop"]


def test_every_other_endpoint_gets_a_verdict_the_best_first() -> None:
    moves = candidates(CLOUD, PHONE, LAPTOP).moves(CLOUD, [], STATE, barred=False)
    assert [(move.target, move.verdict) for move in moves] == [("laptop", Verdict.GO), ("phone", Verdict.GO)]
    moves = candidates(CLOUD, PHONE, LAPTOP).moves(PHONE, [], STATE, barred=False)
    assert [(move.target, move.verdict) for move in moves] == [("laptop", Verdict.GO), ("cloud", Verdict.NOT_CHEAPER)]


def test_what_failed_is_no_target() -> None:
    moves = candidates(CLOUD, PHONE, LAPTOP).moves(CLOUD, [ended(LAPTOP)], STATE, barred=False)
    assert [(move.target, move.verdict) for move in moves] == [("phone", Verdict.GO), ("laptop", Verdict.UNHEALTHY)]


def test_a_bar_only_hides_what_would_go() -> None:
    moves = candidates(CLOUD, PHONE, LAPTOP).moves(PHONE, [], STATE, barred=True)
    assert {move.target: move.verdict for move in moves} == {"laptop": Verdict.LIMIT, "cloud": Verdict.NOT_CHEAPER}


def test_a_parked_prefill_is_free() -> None:
    some = candidates(CLOUD, PHONE)
    [plain] = some.moves(CLOUD, [], STATE, barred=False)
    [parked] = some.moves(CLOUD, [], STATE, barred=False, parked={"phone": 9.0})
    assert (plain.overhead, parked.overhead) == pytest.approx((30e-9, 20e-9))


@pytest.mark.parametrize(
    ("parks", "mode", "allowed", "rivals", "expected"),
    [
        (True, MigrationMode.BREAK, True, ["cloud"], True),
        (True, MigrationMode.BREAK, True, ["laptop", "cloud"], True),
        (True, MigrationMode.BREAK, True, ["laptop"], False),
        (True, MigrationMode.BREAK, True, [], False),
        (True, MigrationMode.BREAK, False, ["cloud"], False),
        (True, None, True, ["cloud"], False),
        (False, MigrationMode.BREAK, True, ["cloud"], False),
    ],
)
def test_who_may_park(
    parks: bool, mode: MigrationMode | None, allowed: bool, rivals: list[str], expected: bool
) -> None:
    phone = endpoint("phone", parks=parks)
    assert candidates(CLOUD, phone, LAPTOP, mode=mode, park=allowed).may_park(phone, rivals) is expected


def test_failures_are_counted_per_endpoint() -> None:
    legs = [ended(PHONE), ended(PHONE), ended(CLOUD, LegOutcome.LOST), ended(LAPTOP)]
    assert [failures(name, legs) for name in ("phone", "cloud", "laptop")] == [2, 0, 1]


@pytest.mark.parametrize(
    ("infos", "failed", "expected"),
    [
        ((CLOUD, PHONE), [], "cloud"),
        ((CLOUD, PHONE), [CLOUD], "phone"),
        ((CLOUD,), [CLOUD], "cloud"),
        ((CLOUD,), [CLOUD, CLOUD], None),
        ((CLOUD, PHONE), [CLOUD, PHONE, PHONE], "cloud"),
        ((endpoint("cloud", continues=ContinuesBy.NO),), [], None),
        ((endpoint("cloud", context=30),), [], None),
        ((endpoint("cloud", context=31),), [], "cloud"),
        ((endpoint("cloud", context=31), endpoint("phone", context=110)), [], "phone"),
        ((endpoint("cloud", context=31), endpoint("phone", context=110)), [PHONE], "cloud"),
    ],
)
def test_who_rescues(infos: tuple[EndpointInfo, ...], failed: list[EndpointInfo], expected: str | None) -> None:
    rescuer = candidates(*infos).rescuer([ended(info) for info in failed], STATE)
    assert (rescuer.id if rescuer else None) == expected
