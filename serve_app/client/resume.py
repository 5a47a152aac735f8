"""An answer whose connection breaks is asked for again from where it stopped, by ``continue_final_message``.

The service keeps nothing of a stream whose client is gone, and another replica of it never knew of it. So the client
brings back what it has: the text, and the number of tokens, which every event of the stream carries as its id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from serve_app.client.errors import Interrupted

#: Seconds before each further attempt: long enough for a router replica to be replaced.
PAUSES: Final = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0)

T = TypeVar("T")


@dataclass
class Shown:
    """What the reader has seen of one answer over all its connections. ``resumed``: how often it was taken up again."""

    text: str = ""
    tokens: int = 0
    resumed: int = 0
    _before: int = 0

    def take(self, text: str, shown: int | None) -> None:
        """``shown``: tokens shown with this connection so far; None where the server does not count them."""
        self.text += text
        if shown is not None:
            self.tokens = self._before + shown

    def reconnect(self) -> None:
        self._before = self.tokens
        self.resumed += 1


def rest_of(body: dict[str, Any], shown: Shown) -> dict[str, Any]:
    """The request for what is missing of the answer to ``body``; ``body`` itself where nothing was shown."""
    if not shown.text:
        return body
    given = {"role": "assistant", "content": shown.text}
    return body | {
        "messages": [*body["messages"], given],
        "max_tokens": body["max_tokens"] - shown.tokens,
        "continue_final_message": True,
    }


async def resuming(
    ask: Callable[[dict[str, Any]], Awaitable[T]],
    body: dict[str, Any],
    shown: Shown,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> T | None:
    """What ``ask`` gives at last; it calls ``shown.take`` for all that it shows.

    None where the connection broke when there was nothing left to ask for. Raises the last ``Interrupted`` when no
    attempt helps any more, and the first where it came before the answer began.
    """
    for pause in (*PAUSES, None):
        try:
            return await ask(rest_of(body, shown))
        except Interrupted as interrupted:
            if pause is None or not (interrupted.begun or shown.resumed):
                raise
            if shown.tokens >= body["max_tokens"]:
                return None
            shown.reconnect()
            await sleep(pause)
    return None
