"""Exit codes of `disco`; the README lists them."""

from __future__ import annotations

from typing import Final

OK: Final = 0
FAILED: Final = 1
BAD_INPUT: Final = 2
UNFIT: Final = 3
UNREACHABLE: Final = 4
INTERRUPTED: Final = 130
