"""Measuring a real vLLM, which batches, caches and counts in its own way."""

from __future__ import annotations

import pytest

from serve_app.cli import measure as measuring
from serve_app.cli.measure import measure
from tests.vllm.conftest import RunningVllm

pytestmark = pytest.mark.vllm


def test_vllm_has_a_line_and_a_rate(vllm: RunningVllm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer and shorter streams than otherwise: enough for a line."""
    for name, value in (("_LENGTHS", 3), ("_LONGEST", 256), ("_ANSWER", 6)):
        monkeypatch.setattr(measuring, name, value)
    steps: list[None] = []
    measured = vllm.run(measure(vllm.engine, None, lambda: steps.append(None)))
    assert measured.samples == len(steps) - 1 == 9
    assert measured.profile.prefill_rate > 0
    assert measured.profile.decode_rate > 0
