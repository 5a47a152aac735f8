"""The contract of an engine's stream, checked where it enters the system."""

from __future__ import annotations

from serve_app.core.errors import EndpointFault
from serve_app.core.model import Receipt, StreamItem, TokenChunk


class StreamContract:
    """A Receipt, then chunks without gap from ``next_index`` on, the last of them with ``finish``."""

    def __init__(self, next_index: int) -> None:
        self.next_index = next_index
        self.open_tokens = 0
        self.finished = False
        self._received = False

    def check(self, item: StreamItem) -> None:
        """Raise ``EndpointFault`` at the first breach."""
        match item:
            case Receipt():
                if self._received:
                    raise EndpointFault("the engine sent a second receipt")
                self._received = True
            case TokenChunk():
                self._check_chunk(item)

    def close(self) -> None:
        """The stream ended: raise ``EndpointFault`` if it must not end here."""
        if not self.finished:
            raise EndpointFault("the engine's stream ended without a reason")

    def _check_chunk(self, chunk: TokenChunk) -> None:
        if not self._received:
            raise EndpointFault("the engine sent tokens before its receipt")
        if chunk.index != self.next_index:
            raise EndpointFault(f"the engine sent token {chunk.index} where {self.next_index} was due")
        if chunk.count < 0 or len(chunk.token_ids) not in (0, chunk.count):
            raise EndpointFault(f"the engine sent {len(chunk.token_ids)} ids for {chunk.count} tokens")
        if chunk.count == 0 and chunk.text and chunk.finish is None:
            raise EndpointFault("the engine sent text that belongs to no token")
        self.next_index += chunk.count
        self.open_tokens = chunk.open_tokens
        self.finished = chunk.finish is not None
