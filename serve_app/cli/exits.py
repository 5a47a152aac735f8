"""Exit codes of `disco`; the README lists them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from serve_app.client.errors import Cause

OK: Final = 0
FAILED: Final = 1
BAD_INPUT: Final = 2
UNFIT: Final = 3
UNREACHABLE: Final = 4
INTERRUPTED: Final = 130

#: How a command ends whose server gave no answer.
EXIT_OF: Final[Mapping[Cause, int]] = {
    Cause.UNREACHABLE: UNREACHABLE,
    Cause.REFUSED: BAD_INPUT,
    Cause.FAILED: FAILED,
}
