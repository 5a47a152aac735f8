"""Runs one long installer step: its output to a file, its progress to the terminal.

Standard library only, and readable by Python 3.9, like preflight.
"""

from __future__ import annotations

import queue
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

#: What a line of pip's output says about the step it is in; the last one that matched is shown.
STEPS = (
    ("Building wheel for llama-cpp-python", "compiling llama.cpp, 5-7 minutes, once"),
    ("Building wheel", "building"),
    ("Building editable", "building this package"),
    ("Installing build dependencies", "preparing"),
    ("Preparing metadata", "preparing"),
    ("Downloading", "downloading packages"),
    ("Collecting", "downloading packages"),
    ("Installing collected packages", "unpacking packages"),
)


def step_of(line: str) -> str | None:
    """The step that begins with this line; None if it begins none."""
    if "finished with status" in line:
        return None
    for mark, step in STEPS:
        if mark in line:
            return step
    return None


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class Progress:
    """One line that is rewritten on a terminal; elsewhere a line per kind of step, and one every ``quiet`` seconds.

    pip goes to and fro between steps, and a log that says so each time is no help.
    """

    def __init__(self, out: TextIO, title: str, now: Callable[[], float] = time.monotonic, quiet: float = 30.0) -> None:
        self._out = out
        self._title = title
        self._now = now
        self._quiet = quiet
        self._terminal = out.isatty()
        self._started = now()
        self._said = self._started
        self._step = "starting"
        self._steps: set[str] = set()
        self._width = 0

    def step(self, step: str) -> None:
        self._step = step
        if not self._terminal and step not in self._steps:
            self._steps.add(step)
            self._say()

    def tick(self) -> None:
        if self._terminal or self._now() - self._said >= self._quiet:
            self._say()

    def done(self, word: str) -> None:
        self._step = word
        self._say()
        if self._terminal:
            self._out.write("\n")
            self._out.flush()

    def _say(self) -> None:
        self._said = self._now()
        text = f"  {self._title}: {self._step} ({clock(self._said - self._started)})"
        if self._terminal:
            self._out.write("\r" + text.ljust(self._width))
            self._width = len(text)
        else:
            self._out.write(text + "\n")
        self._out.flush()


class Outcome(NamedTuple):
    code: int
    tail: tuple[str, ...]


def run_logged(command: Sequence[str], log: Path, progress: Progress, environ: Mapping[str, str], tail: int) -> Outcome:
    """Run to the end. An interrupt ends the installer too before it is passed on."""
    lines: queue.Queue[str | None] = queue.Queue()
    kept: list[str] = []
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(  # noqa: S603
            list(command),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=dict(environ),
            text=True,
            errors="replace",
        )
        reader = threading.Thread(target=_read, args=(process, lines), daemon=True)
        reader.start()
        try:
            while True:
                try:
                    line = lines.get(timeout=1.0)
                except queue.Empty:
                    progress.tick()
                    continue
                if line is None:
                    break
                file.write(line)
                file.flush()
                kept = [*kept[1 - tail :], line.rstrip()]
                step = step_of(line)
                if step is not None:
                    progress.step(step)
                progress.tick()
            code = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
        finally:
            # A grandchild may hold the pipe open; what it still says no longer matters.
            reader.join(timeout=5.0)
    return Outcome(code, tuple(kept))


def _read(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    with process.stdout as output:
        for line in output:
            lines.put(line)
    lines.put(None)
