from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from serve_app.core.lww import REMEMBERED, LwwMap

NAMES, AUTHORS = "ab", ("r1", "r2", "r3")
#: (author, name, value or removal), or two who compare what they know.
SAYING = st.tuples(st.sampled_from(AUTHORS), st.sampled_from(NAMES), st.none() | st.integers(0, 9))
COMPARING = st.tuples(st.sampled_from(AUTHORS), st.sampled_from(AUTHORS))


def compare(one: LwwMap[int], other: LwwMap[int], now: float, delay: float = 0.0) -> None:
    told = one.tell(now)
    other.merge(told, now + delay)
    one.merge(other.tell(now + delay), now + 2 * delay)


@given(st.lists(SAYING | COMPARING, max_size=40))
def test_whoever_has_compared_agrees_whatever_was_said_in_which_order(steps: list[tuple[str, ...]]) -> None:
    maps = {author: LwwMap[int](author) for author in AUTHORS}
    for now, step in enumerate(steps):
        if len(step) == 3:
            author, name, value = step
            maps[author].say(name, value, now)  # type: ignore[arg-type]
        else:
            compare(maps[step[0]], maps[step[1]], now)
    for _ in AUTHORS:
        for one, other in zip(AUTHORS, AUTHORS[1:] + AUTHORS[:1], strict=True):
            compare(maps[one], maps[other], len(steps))
    assert maps["r1"].values() == maps["r2"].values() == maps["r3"].values()


def test_the_last_word_holds_and_a_removal_is_a_word() -> None:
    mine, other = LwwMap[int]("a"), LwwMap[int]("b")
    mine.say("x", 1, 0.0)
    compare(mine, other, 1.0)
    other.say("x", None, 2.0)
    assert other.word("x") is None
    compare(mine, other, 3.0)
    assert mine.values() == other.values() == {}
    mine.say("x", 2, 4.0)
    compare(other, mine, 5.0)
    word = other.word("x")
    assert word is not None
    assert (word.value, word.at) == (2, 4.0)


def test_a_word_does_not_grow_younger_by_travelling() -> None:
    """Otherwise one that nobody repeats could go back and forth for ever."""
    mine, other = LwwMap[int]("a"), LwwMap[int]("b")
    mine.say("x", 1, 0.0)
    for turn in range(1, 50):
        compare(mine, other, float(turn), delay=0.4)
    seen = other.word("x")
    assert seen is not None
    assert seen.at <= 0.4


def test_removals_are_forgotten_in_the_end() -> None:
    mine = LwwMap[int]("a")
    mine.say("x", None, 0.0)
    mine.say("y", 1, 0.0)
    assert set(mine.tell(REMEMBERED - 1)) == {"x", "y"}
    assert set(mine.tell(REMEMBERED)) == {"y"}
    other = LwwMap[int]("b")
    other.merge(LwwMap[int]("c").tell(0.0), 0.0)
    assert other.values() == {}
