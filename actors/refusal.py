"""How a replica says no."""

from __future__ import annotations

from dataclasses import dataclass

from serve_app.core.errors import DiscoError


@dataclass(frozen=True, slots=True)
class Refusal:
    """Ends a replica's answer where ``error`` is no fault of the endpoint's: too long a prompt, a full queue, a model
    that is still loading.

    Ray Serve writes a stack trace into the replica's log for every exception that leaves it, and these are expected.
    """

    error: DiscoError
