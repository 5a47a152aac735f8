"""Where the public measurements lie, for tests that read them; they are not part of the project."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "shared" / "data"

needs_public_data = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="the public traces are not beside this checkout; `disco traces` says where they are"
)
