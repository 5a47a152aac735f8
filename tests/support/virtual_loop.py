"""The loop of ``disco simulate --exact``, under which tests of everything asynchronous run."""

from __future__ import annotations

from serve_app.sim.virtual_time import DeadlockError, run_virtual

__all__ = ["DeadlockError", "run_virtual"]
