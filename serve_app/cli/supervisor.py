"""`disco up` is two processes: the service's, in a session of its own, and this one, which hears the user's signals.

What is sent to a whole process group, as by Ctrl-C, would otherwise reach Ray's processes too, and end them amid their
shutdown.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from serve_app.cli.exits import FAILED
from serve_app.cli.signals import SIGNALS

#: Where services keep Ray's files while they run: Ray's sockets need a short path.
DIRECTORIES = Path("/tmp")  # noqa: S108 - each is made by mkdtemp


def directory_prefix(service: int) -> str:
    """How the name of a service's directory begins, by its process id."""
    return f"disco-{service}-"


def supervise(command: Sequence[str]) -> int:
    """Run the service until it ends by itself or a signal asks for it; its exit code, FAILED if it was killed.

    Its standard input is a pipe that this process holds open. The first signal closes it, and so does the kernel when
    this process is gone, however it died: either way the service stops.
    """
    theirs, ours = os.pipe()
    with open(ours, "wb", buffering=0) as lifeline:
        previous = {number: signal.signal(number, lambda *_: lifeline.close()) for number in SIGNALS}
        try:
            service = subprocess.Popen(list(command), stdin=theirs, start_new_session=True)  # noqa: S603
            os.close(theirs)
            code = service.wait()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
    _clean_up(service.pid)
    return code if code >= 0 else FAILED


def _clean_up(service: int) -> None:
    """What is left of a service that was killed: nothing, if it ended by itself."""
    with suppress(OSError):
        os.killpg(service, signal.SIGKILL)
    for directory in DIRECTORIES.glob(f"{directory_prefix(service)}*"):
        shutil.rmtree(directory, ignore_errors=True)
