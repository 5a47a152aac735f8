"""What each key has spent, in a file that is only ever appended to and outlives the router.

One line of JSON per request: the day in UTC, the key's name, USD. Router replicas that share the folder share the file,
and learn from it what the others have added. A line is written by one call that does not wait for the disk: it survives
the death of the process at any moment, but not a power failure within the next seconds.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from serve_app.private_files import require_private

logger = logging.getLogger(__name__)

FILE_NAME = "spending.jsonl"
DAY_SECONDS = 86_400
_PIECE = 2**20
_CLOSED = -1


@dataclass(frozen=True, slots=True)
class Spent:
    """USD. ``today``: since midnight in UTC, which returns in ``until_tomorrow`` seconds."""

    total: float
    today: float
    until_tomorrow: float


class SpendingFile:
    """``clock``: seconds since the epoch. Opening makes the folder where there is none, and reads what is there.

    Raises OSError, and NotPrivate where others could change what is written.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        require_private(folder.stat(), readable=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(folder / FILE_NAME, flags, 0o600)
        self._clock = clock
        self._read_to = 0
        self._torn = b""
        self._total: defaultdict[str, float] = defaultdict(float)
        self._by_day: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._unwritten: dict[tuple[str, str], float] = {}
        require_private(os.fstat(self._file))
        self._catch_up()

    def close(self) -> None:
        """What is added later counts for nothing: the number of the file may be another's by then."""
        file, self._file = self._file, _CLOSED
        os.close(file)

    def spent(self, key: str) -> Spent:
        self._catch_up()
        now = self._clock()
        day = _day(now)
        owed = {when: usd for (when, who), usd in self._unwritten.items() if who == key}
        return Spent(
            self._total[key] + sum(owed.values()),
            self._by_day[day, key] + owed.get(day, 0.0),
            DAY_SECONDS - now % DAY_SECONDS,
        )

    def add(self, key: str, usd: float) -> None:
        """Never raises: what cannot be written counts all the same, and is tried again with the next request."""
        entry = _day(self._clock()), key
        self._unwritten[entry] = self._unwritten.get(entry, 0.0) + usd
        try:
            self._catch_up()
            self._write()
        except OSError as error:
            logger.error("the spending of keys cannot be written down: %s", error.strerror)  # noqa: TRY400

    def _write(self) -> None:
        for (day, key), usd in list(self._unwritten.items()):
            line = json.dumps({"day": day, "key": key, "usd": usd}).encode() + b"\n"
            # Whoever left a line torn may be gone; it must not swallow this one.
            whole = b"\n" + line if self._torn else line
            if os.write(self._file, whole) < len(whole):
                raise OSError(0, "the disk took only a part of a line")
            del self._unwritten[day, key]

    def _catch_up(self) -> None:
        """Read what was appended since the last time, by this process or another."""
        while piece := os.pread(self._file, _PIECE, self._read_to):
            self._read_to += len(piece)
            *lines, self._torn = (self._torn + piece).split(b"\n")
            for line in lines:
                self._count(line)

    def _count(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
            day, key, usd = str(entry["day"]), str(entry["key"]), float(entry["usd"])
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            if line:
                logger.warning("a line of %s is not whole and counts for nothing", FILE_NAME)
            return
        if math.isfinite(usd) and usd >= 0:
            self._total[key] += usd
            self._by_day[day, key] += usd


def _day(now: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(now))
