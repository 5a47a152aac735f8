"""Files and folders that a command writes at its end, judged before it does its work."""

from __future__ import annotations

import os
from pathlib import Path

from serve_app.sim.tables import BadInput


def require_file(option: str, path: Path) -> None:
    """Raises ``BadInput`` where no file could be written to ``path``, as far as that can be told without one."""
    folder = path.parent
    if path.is_dir():
        reason = "it is a folder"
    elif not folder.is_dir():
        reason = f"there is no folder {folder}"
    elif not os.access(path if path.exists() else folder, os.W_OK):
        reason = "this user may not"
    else:
        return
    raise BadInput(f"{option}: {path} cannot be written ({reason}); give another file")


def require_folder(option: str, folder: Path) -> None:
    """The same for a folder, which is made together with those above it."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir():
        reason = f"{there} is a file"
    elif not os.access(there, os.W_OK):
        reason = f"this user may not write to {there}"
    else:
        return
    raise BadInput(f"{option}: {folder} cannot be written ({reason}); give another folder")
