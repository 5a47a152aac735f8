from __future__ import annotations

import pytest

from serve_app.core.load import MEMORY, PRIOR_HOLD, Capacity, EndpointLoad


def test_a_newcomer_queues_once_every_slot_runs() -> None:
    load = EndpointLoad({"phone": Capacity(2), "cloud": Capacity(4)})
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
    load = EndpointLoad({"phone": Capacity(1)})
    for _ in range(100):
        load.started("phone")
        load.ended("phone", 2.0)
    load.started("phone")
    assert load.queue_seconds("phone") == pytest.approx(2.0, rel=0.01)


def test_what_other_routers_run_takes_slots_too() -> None:
    load = EndpointLoad({"phone": Capacity(2), "cloud": Capacity(4)})
    load.started("phone")
    load.elsewhere = {"phone": 1}
    assert (load.is_full("phone"), load.running("phone"), load.own) == (True, 2, {"phone": 1, "cloud": 0})


def test_what_a_device_does_for_others_takes_slots_until_it_says_otherwise() -> None:
    load = EndpointLoad({"phone": Capacity(2)})
    load.started("phone")
    load.elsewhere = {"phone": 1}
    load.report("phone", 3)
    assert (load.foreign, load.running("phone"), load.is_full("phone")) == ({"phone": 1}, 3, True)
    load.report("phone", 1)
    assert (load.foreign, load.running("phone")) == ({"phone": 0}, 2)


def test_endpoints_come_and_go_and_one_that_is_back_still_runs_what_it_ran() -> None:
    load = EndpointLoad({"cloud": Capacity(4)})
    load.add("phone", Capacity(1))
    load.started("phone")
    load.add("phone", Capacity(3))
    assert (load.running("phone"), load.is_full("phone")) == (1, False)
    load.ended("phone", 1.0)
    load.forget("phone")
    assert load.own == {"cloud": 0}


# --- how many replicas there are --------------------------------------------------------------------------------


def answers(load: EndpointLoad, *replicas: str, rounds: int = 1, failed: bool = False) -> None:
    for replica in replicas * rounds:
        load.started("phone")
        load.ended("phone", 1.0, replica, failed=failed)


def test_at_first_the_replicas_that_are_always_there_are_believed_in_not_those_that_may_come() -> None:
    load = EndpointLoad({"phone": Capacity(2, replicas=2, most_replicas=8)})
    assert load.slots("phone") == 4
    answers(load, "a")
    assert load.slots("phone") == 4, "one answer says little"


def test_a_replica_that_joins_counts_from_its_first_answer() -> None:
    load = EndpointLoad({"phone": Capacity(2, replicas=1, most_replicas=8)})
    answers(load, "a", "b", "c")
    assert load.slots("phone") == 6


def test_replicas_that_never_answer_are_not_believed_in_for_ever() -> None:
    load = EndpointLoad({"phone": Capacity(2, replicas=3, most_replicas=3)})
    answers(load, "a", rounds=3 * MEMORY)
    assert load.slots("phone") == 2


def test_a_replica_that_failed_does_not_count_until_it_answers_again() -> None:
    load = EndpointLoad({"phone": Capacity(2, replicas=2, most_replicas=2)})
    answers(load, "a", "b", rounds=MEMORY)
    answers(load, "b", failed=True)
    assert load.slots("phone") == 2
    answers(load, "b")
    assert load.slots("phone") == 4


def test_there_is_one_replica_at_least() -> None:
    load = EndpointLoad({"phone": Capacity(2)})
    answers(load, "a", rounds=MEMORY)
    answers(load, "a", failed=True)
    assert load.slots("phone") == 2


def test_who_names_no_replica_tells_nothing() -> None:
    load = EndpointLoad({"phone": Capacity(2, replicas=3, most_replicas=3)})
    answers(load, "", rounds=100)
    assert load.slots("phone") == 6
