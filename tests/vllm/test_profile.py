"""Measuring a real vLLM, which batches, caches and counts in its own way."""

from __future__ import annotations

import pytest

from serve_app.cli.measure import STREAMS, measure
from tests.vllm.conftest import RunningVllm

pytestmark = pytest.mark.vllm


def test_vllm_has_a_line_and_a_rate(vllm: RunningVllm) -> None:
    steps: list[None] = []
    measured = vllm.run(measure(vllm.engine, None, lambda: steps.append(None)))
    assert len(steps) == STREAMS
    assert measured.profile.prefill_rate > measured.profile.decode_rate > 0
    assert measured.line.slope > 0
