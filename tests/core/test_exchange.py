from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from serve_app.core.estimates import Observation, Seen
from serve_app.core.exchange import GONE_AFTER, Exchange


def seen(*tokens: int) -> list[Observation]:
    return [Observation(Seen.PROMPT, each) for each in tokens]


def test_each_gets_the_others_news_once() -> None:
    exchange = Exchange()
    a = exchange.trade("a", 0, seen(1, 2), {}, 0.0)
    assert a.observations == []
    b = exchange.trade("b", 0, seen(3), {}, 0.0)
    assert b.observations == seen(1, 2)
    a = exchange.trade("a", a.cursor, seen(4), {}, 1.0)
    assert a.observations == seen(3)
    assert exchange.trade("a", a.cursor, [], {}, 2.0).observations == []
    assert exchange.trade("b", b.cursor, [], {}, 2.0).observations == seen(4)


def test_what_was_forgotten_is_not_waited_for() -> None:
    exchange = Exchange(keep=3)
    exchange.trade("a", 0, seen(*range(10)), {}, 0.0)
    assert exchange.trade("b", 2, [], {}, 0.0).observations == seen(7, 8, 9)


def test_a_new_exchange_serves_routers_that_knew_the_old_one() -> None:
    exchange = Exchange()
    exchange.trade("a", 500, seen(1), {}, 0.0)
    assert exchange.trade("b", 500, [], {}, 0.0).observations == seen(1)


def test_legs_of_the_others_are_added_until_they_are_gone() -> None:
    exchange = Exchange()
    exchange.trade("a", 0, [], {"phone": 2, "cloud": 1}, 0.0)
    exchange.trade("b", 0, [], {"phone": 1}, 5.0)
    assert exchange.trade("c", 0, [], {"phone": 9}, 5.0).running == {"phone": 3, "cloud": 1}
    assert exchange.trade("c", 0, [], {}, GONE_AFTER).running == {"phone": 1}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5)), max_size=60))
def test_nothing_is_lost_or_told_twice(visits: list[tuple[str, int]]) -> None:
    exchange, cursors = Exchange(), dict.fromkeys("abc", 0)
    told: dict[str, Counter[int]] = {who: Counter() for who in "abc"}
    made: dict[str, Counter[int]] = {who: Counter() for who in "abc"}
    number = 0
    for who, count in [*visits, *((who, 0) for who in "abc")]:
        own = list(range(number, number + count))
        number += count
        made[who].update(own)
        news = exchange.trade(who, cursors[who], seen(*own), {}, 0.0)
        cursors[who] = news.cursor
        told[who].update(each.tokens for each in news.observations)
    for who in "abc":
        assert told[who] == sum((made[other] for other in "abc" if other != who), Counter())
