from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.core.text import StopFilter, Utf8Assembler

FAMILY = "👩‍👩‍👧é漢"


def cut(text: str, sizes: list[int]) -> list[str]:
    pieces, start = [], 0
    for size in sizes:
        pieces.append(text[start : start + size])
        start += size
    return [*pieces, text[start:]]


def shown(stops: tuple[str, ...], pieces: list[str]) -> tuple[str, bool]:
    stop_filter = StopFilter(stops)
    text = "".join(stop_filter.feed(piece) for piece in pieces)
    return text + stop_filter.flush(), stop_filter.matched


def test_bytes_of_a_character_wait_until_it_is_whole() -> None:
    assembler = Utf8Assembler()
    pieces = [assembler.feed(bytes([byte])) for byte in FAMILY.encode()]
    assert "".join(pieces) == FAMILY
    assert "\ufffd" not in "".join(pieces)
    assert assembler.pending == 0


def test_pending_counts_the_bytes_of_the_open_character() -> None:
    assembler = Utf8Assembler()
    assert assembler.feed("漢".encode()[:2]) == ""
    assert assembler.pending == 2
    assert assembler.feed("漢".encode()[2:]) == "漢"
    assert assembler.pending == 0


def test_bytes_that_never_become_a_character_are_replaced() -> None:
    assembler = Utf8Assembler()
    assert assembler.feed(b"\xffa") == "\ufffda"
    assert assembler.feed(b"\xe6b") == "\ufffdb"


@given(st.text(), st.lists(st.integers(0, 5)))
def test_any_cut_of_the_bytes_gives_the_same_text(text: str, sizes: list[int]) -> None:
    data, assembler, start, out = text.encode("utf-8", "replace"), Utf8Assembler(), 0, ""
    for size in [*sizes, len(data)]:
        out += assembler.feed(data[start : start + size])
        start += size
    assert out == data.decode()


@pytest.mark.parametrize(
    ("stops", "pieces", "expected", "matched"),
    [
        (("END!",), ["E", "ND", "!x"], "", True),
        (("END!",), ["EN", "DO"], "ENDO", False),
        (("END!",), ["abEND", "!x"], "ab", True),
        (("END!",), ["EEND!"], "E", True),
        (("aab",), ["aaab"], "a", True),
        (("aab",), ["a", "a", "a", "b"], "a", True),
        (("x", "yz"), ["ayzx"], "a", True),
        (("abcd", "bc"), ["abcd"], "a", True),
        (("bc", "abc"), ["abc"], "", True),
        (("END!",), ["EN"], "EN", False),
        (("\n\n",), ["a\n", "b\n", "\nc"], "a\nb", True),
        ((), ["a", "b"], "ab", False),
    ],
)
def test_stop_strings(stops: tuple[str, ...], pieces: list[str], expected: str, matched: bool) -> None:
    assert shown(stops, pieces) == (expected, matched)


def test_nothing_of_a_possible_stop_string_is_shown() -> None:
    stop_filter = StopFilter(("END!",))
    assert stop_filter.feed("say EN") == "say "
    assert stop_filter.held == 2
    assert stop_filter.feed("D") == ""
    assert stop_filter.feed("!") == ""
    assert stop_filter.matched
    assert stop_filter.held == 0
    assert stop_filter.feed("more") == ""
    assert stop_filter.flush() == ""


def test_only_as_much_as_could_match_is_held() -> None:
    stop_filter = StopFilter(("aaab", "b"))
    assert stop_filter.feed("aaaaa") == "aa"
    assert stop_filter.held == 3


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.text("abc", max_size=20),
    st.lists(st.integers(0, 4), max_size=8),
)
def test_the_cut_into_chunks_changes_nothing(stops: list[str], text: str, sizes: list[int]) -> None:
    whole = shown(tuple(stops), list(text))
    assert shown(tuple(stops), cut(text, sizes)) == whole
    assert text.startswith(whole[0])
    assert whole[1] == any(stop in text for stop in stops)
    assert not any(stop in whole[0] for stop in stops)
