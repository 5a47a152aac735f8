"""How hard a fuzz tries: a few inputs, the same ones, in every run of the tests; many new ones in `make fuzz`."""

from __future__ import annotations

import os
from typing import Final

THOROUGH: Final = os.environ.get("DISCO_FUZZ") == "1"


def examples(usual: int, many: int) -> int:
    return many if THOROUGH else usual
