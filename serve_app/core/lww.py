"""A map that several processes change and compare now and then: of two words on one name, the last one holds.

A state-based CRDT (last writer wins): merging in any order, any number of times, comes to the same map. Ages travel,
not times, so no clock is shared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

V = TypeVar("V")

#: Seconds for which it is remembered that a name was removed: nobody is out of touch for longer and comes back.
REMEMBERED: Final = 3600.0


class Stamp(NamedTuple):
    """Of two words the larger holds: ``number`` grows with every word on a name, and authors part two equal ones."""

    number: int
    author: str


@dataclass(frozen=True, slots=True)
class Word(Generic[V]):
    """``value`` None: the name was removed. ``at``: when it was said, on the holder's clock."""

    stamp: Stamp
    value: V | None
    at: float


@dataclass(frozen=True, slots=True)
class Told(Generic[V]):
    """A word on its way to another process. ``age``: seconds since it was said."""

    stamp: Stamp
    value: V | None
    age: float


class LwwMap(Generic[V]):
    """``author``: unique among those that merge. Every ``now`` is seconds of this process's monotonic clock."""

    def __init__(self, author: str) -> None:
        self._author = author
        self._words: dict[str, Word[V]] = {}

    def say(self, name: str, value: V | None, now: float) -> None:
        """The last word on ``name`` from now on; None removes it."""
        before = self._words.get(name)
        number = 1 if before is None else before.stamp.number + 1
        self._words[name] = Word(Stamp(number, self._author), value, now)

    def word(self, name: str) -> Word[V] | None:
        """None also where the name was removed."""
        word = self._words.get(name)
        return None if word is None or word.value is None else word

    def values(self) -> dict[str, V]:
        return {name: word.value for name, word in self._words.items() if word.value is not None}

    def tell(self, now: float) -> dict[str, Told[V]]:
        """All that is known, for another's ``merge``."""
        self._forget(now)
        return {name: Told(word.stamp, word.value, now - word.at) for name, word in self._words.items()}

    def merge(self, told: Mapping[str, Told[V]], now: float) -> None:
        for name, new in told.items():
            known, at = self._words.get(name), now - new.age
            if known is None or new.stamp > known.stamp:
                self._words[name] = Word(new.stamp, new.value, at)
            elif new.stamp == known.stamp:
                # Time on the way makes a word look younger than it is: who looks at it from nearest by is right.
                self._words[name] = Word(known.stamp, known.value, min(at, known.at))
        self._forget(now)

    def _forget(self, now: float) -> None:
        for name, word in list(self._words.items()):
            if word.value is None and now - word.at >= REMEMBERED:
                del self._words[name]
