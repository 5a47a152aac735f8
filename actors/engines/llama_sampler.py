"""The choice of the next token from a row of logits, in numpy so that it is the same on every platform."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from serve_app.core.model import Sampling

_HEAD: Final = 512
"""Candidates sorted at first; a nucleus rarely holds more."""


class Sampler:
    """One stream's sampling state: its random numbers and how often it chose each token.

    ``accepted`` are the tokens earlier legs chose: penalties cover the whole answer, not the leg.
    """

    def __init__(self, sampling: Sampling, accepted: Iterable[int] = ()) -> None:
        self._sampling = sampling
        # numpy takes no negative seed; OpenAI's is any 64-bit integer.
        self._random = np.random.default_rng(None if sampling.seed is None else sampling.seed % 2**64)
        self._counts: dict[int, int] = {}
        for token in accepted:
            self._count(token)

    def choose(self, logits: NDArray[np.float32]) -> int:
        """The next token's id; ``logits`` is left as it is."""
        token = self._choose(self._penalised(logits))
        self._count(token)
        return token

    def _count(self, token: int) -> None:
        self._counts[token] = self._counts.get(token, 0) + 1

    def _penalised(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        presence, frequency = self._sampling.presence_penalty, self._sampling.frequency_penalty
        if not self._counts or (presence == 0 and frequency == 0):
            return logits
        logits = logits.copy()
        ids = np.fromiter(self._counts.keys(), np.intp, len(self._counts))
        counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
        logits[ids] -= np.float32(presence) + np.float32(frequency) * counts
        return logits

    def _choose(self, logits: NDArray[np.float32]) -> int:
        if self._sampling.temperature == 0:
            return int(np.argmax(logits))
        with np.errstate(over="ignore"):  # a tiny temperature: all but the likeliest weigh nothing
            weights = np.exp((logits.astype(np.float64) - float(logits.max())) / self._sampling.temperature)
        draw = self._random.random()
        if self._sampling.top_p >= 1:
            return _pick(weights, draw)
        nucleus = _nucleus(weights, self._sampling.top_p)
        return int(nucleus[_pick(weights[nucleus], draw)])


def _nucleus(weights: NDArray[np.float64], top_p: float) -> NDArray[np.intp]:
    """The fewest likeliest tokens whose share reaches ``top_p``; never none."""
    total = weights.sum()
    head = np.argpartition(weights, -_HEAD)[-_HEAD:] if weights.size > _HEAD else np.arange(weights.size)
    if weights[head].sum() < top_p * total:
        head = np.arange(weights.size)
    head = head[np.lexsort((head, -weights[head]))]
    enough = int(np.searchsorted(np.cumsum(weights[head]), top_p * total))
    return head[: enough + 1]


def _pick(weights: NDArray[np.float64], draw: float) -> int:
    cumulative = np.cumsum(weights)
    index = int(np.searchsorted(cumulative, draw * cumulative[-1], side="right"))
    return min(index, weights.size - 1)
