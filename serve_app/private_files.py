"""Files that decide who may spend what: nobody else on the machine may change them, and strangers may not read them."""

from __future__ import annotations

import os
import stat


class NotPrivate(ValueError):
    """The message names the remedy, and no path: the caller knows which file it is."""


def require_private(status: os.stat_result, *, readable: bool = False) -> None:
    """``status``: of the open file or folder itself, so that no other can take its place after the look.

    Raises NotPrivate. A group may read, which is how Kubernetes hands out secrets (``defaultMode: 0440``);
    ``readable``: and so may everybody.
    """
    if status.st_uid not in {0, os.geteuid()}:
        raise NotPrivate("belongs to another user; it must be this user's or root's")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise NotPrivate("others may change it; remove their permission with `chmod go-w`")
    if not readable and status.st_mode & stat.S_IRWXO:
        raise NotPrivate("strangers may read it; remove their permission with `chmod o-rwx`")
