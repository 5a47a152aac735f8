"""Where this project's loggers write inside a Serve replica: into the replica's own log file, as Serve's do.

By themselves they would write to standard error, which Serve takes for mere information, and drops above that level.
"""

from __future__ import annotations

import logging
from typing import Final

from ray.serve import get_replica_context
from ray.serve.exceptions import RayServeException

_SERVE: Final = "ray.serve"
_OURS: Final = ("serve_app", "actors")


def join_serves_log() -> None:
    """For the constructor of a deployment's class; does nothing where no replica is."""
    try:
        get_replica_context()
    except RayServeException:
        return
    for name in _OURS:
        logging.getLogger(name).parent = logging.getLogger(_SERVE)
