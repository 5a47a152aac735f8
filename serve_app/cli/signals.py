"""How a signal, or the end of the process that started this one, becomes an orderly stop."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """A signal asked this process to end; like KeyboardInterrupt, nothing but the launcher catches it."""


@contextmanager
def stop_by_signal() -> Iterator[None]:
    """Turns ``SIGNALS`` into ``Stopped`` in the main thread."""
    previous = {number: signal.getsignal(number) for number in SIGNALS}
    listen()
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def listen() -> None:
    """Within ``stop_by_signal``: once more, for where somebody else has taken a signal."""
    for number in SIGNALS:
        signal.signal(number, _stop)


def stop_with_parent() -> None:
    """Within ``stop_by_signal``: stop too when standard input ends, which whoever started this process holds open."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        # To the main thread itself: only that wakes it from waiting for a lock. Ray leaves SIGINT alone.
        signal.pthread_kill(main, signal.SIGINT)

    main = threading.get_ident()
    threading.Thread(target=wait, name="parent", daemon=True).start()


def _stop(_number: int, _frame: FrameType | None) -> NoReturn:
    # One is enough: a second Ctrl-C, or the one a terminal sends besides make's, must not cut the shutdown short.
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise Stopped
