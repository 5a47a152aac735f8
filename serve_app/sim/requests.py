"""Requests to replay, drawn in bulk from what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serve_app.core.latency import LinearTtft

#: Requests per block: its arrays stay in the processor's cache.
BLOCK = 1 << 16


@dataclass(frozen=True, slots=True)
class Requests:
    """N requests: tokens of prompt (l) and answer (n), the server's TTFT T_s in seconds, and the policy's ``u``."""

    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    server_ttft: NDArray[np.float64]
    u: NDArray[np.float64]

    def __len__(self) -> int:
        return self.prompt_tokens.size

    def __getitem__(self, chosen: NDArray[np.bool_] | slice) -> Requests:
        return Requests(
            self.prompt_tokens[chosen], self.output_tokens[chosen], self.server_ttft[chosen], self.u[chosen]
        )


@dataclass(frozen=True, slots=True)
class Population:
    """What requests are drawn from: every TTFT and every (prompt, answer) pair equally likely, independently.

    Independent because a service's TTFT hardly depends on the prompt (paper section 1). ``device``: T_d(l).
    """

    server_ttft: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    device: LinearTtft

    def draw(self, count: int, rng: np.random.Generator) -> Requests:
        ttft = self.server_ttft[rng.integers(0, self.server_ttft.size, count, dtype=np.int32)]
        row = rng.integers(0, self.prompt_tokens.size, count, dtype=np.int32)
        return Requests(self.prompt_tokens[row], self.output_tokens[row], ttft, rng.random(count))

    def blocks(self, count: int, seed: int) -> Iterator[Requests]:
        """``count`` requests, the same ones for the same seed, whatever is done with them."""
        rng = np.random.default_rng(seed)
        for start in range(0, count, BLOCK):
            yield self.draw(min(BLOCK, count - start), rng)
