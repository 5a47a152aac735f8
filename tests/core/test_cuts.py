from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from serve_app.core.cuts import even_cuts

weights = st.lists(st.floats(0.001, 1), min_size=1, max_size=200)


def test_equal_weights_are_cut_into_equal_pieces() -> None:
    assert even_cuts(np.arange(1.0, 13.0), 4).tolist() == [2, 5, 8, 11]
    assert even_cuts(np.arange(1.0, 4.0), 9).tolist() == [0, 1, 2]


def test_a_heavy_entry_is_a_piece_of_its_own() -> None:
    assert even_cuts(np.cumsum([1.0, 1.0, 30.0, 1.0, 1.0]), 8).tolist() == [1, 2, 4]


@given(weights, st.integers(1, 50))
def test_no_piece_is_heavier_than_a_share_and_half_of_its_ends(given_weights: list[float], most: int) -> None:
    reached = np.cumsum(given_weights)
    ends = even_cuts(reached, most)
    assert ends.size <= most
    assert ends[-1] == reached.size - 1
    assert (np.diff(ends) > 0).all()
    entries = np.array(given_weights)
    halves = (entries[np.append(0, ends[:-1] + 1)] + entries[ends]) / 2
    assert (np.diff(reached[ends], prepend=0.0) <= reached[-1] / most + halves + 1e-9).all()
