"""vLLM's processes without Ray, which would clean up after its own workers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.vllm.processes import LONGEST_END, LONGEST_START, lives, until, workers

pytestmark = pytest.mark.vllm

#: A process that starts the engine as a replica does.
PROGRAM = """
import asyncio, sys
from actors.engines.vllm_engine import VllmEngine
from serve_app.engine_settings import VllmEngineSettings

if __name__ == "__main__":
    settings = VllmEngineSettings(model=sys.argv[1], context_length=256, eager=True, kv_cache_gib=0.1)
    asyncio.run(VllmEngine(settings, 1, 1).start())
"""


def test_they_follow_a_process_that_is_killed_while_they_load(folder: Path, tmp_path: Path) -> None:
    program = tmp_path / "replica.py"
    program.write_text(PROGRAM)
    log = tmp_path / "log"
    with log.open("wb") as out, subprocess.Popen([sys.executable, program, folder], stdout=out, stderr=out) as replica:
        try:
            above = psutil.Process(replica.pid)

            def worker_is_there() -> bool:
                assert lives(above), log.read_text("utf-8", "replace")[-2000:]
                return bool(workers(above))

            until(worker_is_there, LONGEST_START)
            family = above.children(recursive=True)
        finally:
            replica.kill()
    until(lambda: not any(map(lives, family)), LONGEST_END)
