"""How to cut a long table into a few pieces of about equal weight."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def even_cuts(reached: NDArray[np.float64], most: int) -> NDArray[np.int64]:
    """Last positions, ascending, of at most ``most`` pieces of a table whose weights add up to ``reached``."""
    shares = np.arange(1, most) * (reached[-1] / most)
    ends = np.append(reached.searchsorted(shares), reached.size - 1)
    last: NDArray[np.int64] = ends[np.append(np.diff(ends) > 0, True)]
    return last
