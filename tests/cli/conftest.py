from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture
def listens_to_ctrl_c() -> Iterator[None]:
    """A shell starts a background job with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
