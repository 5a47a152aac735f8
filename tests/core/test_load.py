from __future__ import annotations

import pytest

from serve_app.core.load import PRIOR_HOLD, EndpointLoad


def test_a_newcomer_queues_once_every_slot_runs() -> None:
    load = EndpointLoad({"phone": 2, "cloud": 4})
    assert (load.is_full("phone"), load.queue_seconds("phone")) == (False, 0.0)
    load.started("phone")
    load.started("phone")
    assert (load.is_full("phone"), load.is_full("cloud"), load.slots("cloud")) == (True, False, 4)
    assert load.queue_seconds("phone") == pytest.approx(PRIOR_HOLD / 2)
    load.started("phone")
    assert load.queue_seconds("phone") == pytest.approx(PRIOR_HOLD)
    for _ in range(2):
        load.ended("phone", PRIOR_HOLD)
    assert (load.running("phone"), load.queue_seconds("phone")) == (1, 0.0)


def test_the_expected_wait_follows_how_long_slots_were_held() -> None:
    load = EndpointLoad({"phone": 1})
    for _ in range(100):
        load.started("phone")
        load.ended("phone", 2.0)
    load.started("phone")
    assert load.queue_seconds("phone") == pytest.approx(2.0, rel=0.01)


def test_what_other_routers_run_takes_slots_too() -> None:
    load = EndpointLoad({"phone": 2, "cloud": 4})
    load.started("phone")
    load.elsewhere = {"phone": 1}
    assert (load.is_full("phone"), load.running("phone"), load.own) == (True, 2, {"phone": 1, "cloud": 0})


def test_what_a_device_does_for_others_takes_slots_until_it_says_otherwise() -> None:
    load = EndpointLoad({"phone": 2})
    load.started("phone")
    load.elsewhere = {"phone": 1}
    load.report("phone", 3)
    assert (load.foreign, load.running("phone"), load.is_full("phone")) == ({"phone": 1}, 3, True)
    load.report("phone", 1)
    assert (load.foreign, load.running("phone")) == ({"phone": 0}, 2)


def test_endpoints_come_and_go_and_one_that_is_back_still_runs_what_it_ran() -> None:
    load = EndpointLoad({"cloud": 4})
    load.add("phone", 1)
    load.started("phone")
    load.add("phone", 3)
    assert (load.running("phone"), load.is_full("phone")) == (1, False)
    load.ended("phone", 1.0)
    load.forget("phone")
    assert load.own == {"cloud": 0}
