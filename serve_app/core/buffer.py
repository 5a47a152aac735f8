"""The token buffer of one stream: what was accepted, what may be shown, what was delivered, how far ahead we are.

Three positions, in tokens of the logical request: accepted >= releasable >= delivered. Handoffs, ``max_tokens`` and
usage count accepted tokens; the lead counts releasable ones.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from serve_app.core.model import Handoff, TokenChunk
from serve_app.core.text import StopFilter


class OutOfOrder(Exception):
    """A chunk that starts after, or straddles, the next index."""


@dataclass(frozen=True, slots=True)
class Release:
    """Text that became showable, and the tokens that are now shown in full: ``index`` .. ``index + count - 1``."""

    index: int
    count: int
    text: str


class TokenBuffer:
    """``rate``: the reader's tokens per second (r_c), None when unknown. Times are seconds of one monotonic clock."""

    def __init__(self, rate: float | None, stops: Sequence[str] = ()) -> None:
        self.rate = rate
        self.accepted = 0
        self.releasable = 0
        self.delivered = 0
        self.open_tokens = 0
        #: The open tokens may hold more than the open character: the chunk of the first one had text.
        self._open_text = False
        self.arrivals: list[float] = []
        self._filter = StopFilter(stops)
        self._pieces: list[str] = []
        self._ids: array[int] | None = array("i")
        self._vocabulary: str | None = None
        self._chars_accepted = 0
        self._chars_released = 0
        self._boundaries: deque[tuple[int, int]] = deque()

    @property
    def stopped(self) -> bool:
        """A stop string matched."""
        return self._filter.matched

    @property
    def backlog(self) -> int:
        """Tokens accepted but not delivered."""
        return self.accepted - self.delivered

    def accept(self, chunk: TokenChunk, vocabulary: str | None, now: float) -> Release | None:
        """Append the chunk; None if it holds nothing new. Raises OutOfOrder and then changes nothing."""
        if chunk.index + chunk.count <= self.accepted:
            return None
        if chunk.index != self.accepted:
            raise OutOfOrder(f"chunk starts at token {chunk.index}, expected {self.accepted}")
        self.accepted += chunk.count
        self.open_tokens = min(chunk.open_tokens, self.accepted - self.releasable)
        if self.open_tokens <= chunk.count:
            self._open_text = bool(chunk.text)
        self._remember_ids(chunk, vocabulary)
        self._pieces.append(chunk.text)
        self._chars_accepted += len(chunk.text)
        self._boundaries.append((self.accepted - self.open_tokens, self._chars_accepted))
        return self._release(self._filter.feed(chunk.text), now)

    def finish(self, now: float) -> Release:
        """The stream is complete: release what was held back. Tokens of a character that never came stay textless."""
        release = self._release(self._filter.flush(), now)
        missing = self.accepted - self.releasable
        self.releasable = self.accepted
        self.arrivals.extend([now] * missing)
        return Release(release.index, release.count + missing, release.text)

    def deliver(self, tokens: int) -> None:
        self.delivered = min(self.delivered + tokens, self.releasable)

    def handoff(self, vocabulary: str | None) -> Handoff:
        """The buffer as it travels to an endpoint with ``vocabulary``: ids if it is the same, else text.

        By text, tokens inside an incomplete character are not part of it: call ``roll_back`` before the new leg owns.
        """
        text = "".join(self._pieces)
        if self._ids is not None and vocabulary is not None and vocabulary == self._vocabulary:
            return Handoff(text, self.accepted, self._ids.tobytes())
        return Handoff(text, self.accepted - self.open_tokens)

    def roll_back(self) -> None:
        """Forget the trailing tokens whose character is not whole. None of them was ever releasable.

        The first of them may have completed other characters, which stay. Then the remaining ids no longer spell the
        text, and the stream goes on without any.
        """
        if self.open_tokens:
            self.accepted -= self.open_tokens
            if self._open_text:
                self._ids = None
            elif self._ids is not None:
                del self._ids[self.accepted :]
            self.open_tokens = 0

    def read(self, now: float) -> int:
        """Tokens read so far by a reader who catches up: min(accepted, 1 + floor((now - a_1) r_c)) (paper 8)."""
        if self.rate is None or not self.arrivals:
            return self.accepted
        return min(self.accepted, 1 + math.floor((now - self.arrivals[0]) * self.rate))

    def lead(self, now: float) -> int:
        """Releasable tokens the reader has not read yet; 0 when the rate is unknown."""
        return max(0, self.releasable - self.read(now))

    def runs_dry_at(self) -> float | None:
        """The instant at which the reader wants a token that is not releasable yet; None when unknown."""
        if self.rate is None or not self.arrivals:
            return None
        return self.arrivals[0] + self.releasable / self.rate

    def due_at(self, index: int) -> float | None:
        """When the reader wants token ``index``: d_i = a_1 + i / r_c, i from 0 (paper 8)."""
        if self.rate is None or not self.arrivals:
            return None
        return self.arrivals[0] + index / self.rate

    def _remember_ids(self, chunk: TokenChunk, vocabulary: str | None) -> None:
        if self._ids is None:
            return
        if not self._ids:
            self._vocabulary = vocabulary
        if len(chunk.token_ids) == chunk.count and vocabulary is not None and vocabulary == self._vocabulary:
            self._ids.extend(chunk.token_ids)
        else:
            self._ids = None

    def _release(self, text: str, now: float) -> Release:
        self._chars_released += len(text)
        first = self.releasable
        while self._boundaries and self._boundaries[0][1] <= self._chars_released:
            self.releasable = max(self.releasable, self._boundaries.popleft()[0])
        count = self.releasable - first
        self.arrivals.extend([now] * count)
        return Release(first, count, text)
