"""What `disco chat` and the request that `disco up` prints ask for, where the user says nothing."""

from __future__ import annotations

from typing import Final

#: Small models wander at OpenAI's default of 1.
TEMPERATURE: Final = 0.3
