"""How to cut a long table into a few pieces of about equal weight."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def even_cuts(reached: NDArray[np.float64], most: int) -> NDArray[np.int64]:
    """Last positions, ascending, of at most ``most`` pieces of a table whose positive weights add up to ``reached``.

    Entries whose middles fall into the same of ``most`` equal shares are one piece, so that a heavy one is left alone.
    """
    middles = reached.copy()
    middles[1:] += reached[:-1]
    share = (middles * (most / (2 * reached[-1]))).astype(np.int64)
    return np.append(np.flatnonzero(np.diff(share)), reached.size - 1)
