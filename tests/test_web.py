"""The page's modules without a DOM, under node's own test runner. tests/browser has the page itself."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from serve_app.core.legs import LegOutcome, LegReason
from serve_app.core.migration import Verdict
from serve_app.page import WEB

NODE = shutil.which("node")
TESTS = sorted(str(path) for path in (Path(__file__).parent / "web").glob("*.test.mjs"))


@pytest.mark.skipif(NODE is None, reason="no node here: install it, or run `make test-browser`, which needs none")
def test_the_modules_that_only_think() -> None:
    assert NODE is not None
    run = subprocess.run([NODE, "--test", *TESTS], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "fail 0" in run.stdout


@pytest.mark.parametrize("word", [*Verdict, *LegReason, *(o for o in LegOutcome if o is not LegOutcome.RUNNING)])
def test_every_word_of_an_event_has_words_on_the_page(word: str) -> None:
    assert f"  {word}: " in (Path(str(WEB)) / "words.mjs").read_text()
