"""What the HTTP layer and the stream service say to each other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from serve_app.core.model import Pin, Prompt, Sampling
from serve_app.core.trail import StreamEvent


@dataclass(frozen=True, slots=True)
class Grant:
    """What the caller's key allows. A request may narrow it further, never widen it.

    key: the key's name, None where nobody asks for one. pin, endpoints: as in ``ClientRequest``.
    """

    key: str | None = None
    pin: Pin | None = None
    endpoints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A validated request. ``consumption_rate`` is r_c in tokens per second, None when unknown.

    endpoints: the only ones that it may use, as ``pin`` names the only kind; empty: any. events: tell what happens.
    """

    request_id: str
    model: str
    prompt: Prompt
    sampling: Sampling
    stop: tuple[str, ...] = ()
    consumption_rate: float | None = 4.8
    delivery: Literal["eager", "paced"] = "eager"
    pin: Pin | None = None
    endpoints: tuple[str, ...] = ()
    migrate: bool = True
    events: bool = False
    grant: Grant = Grant()
    trace: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Delta:
    """New text; tokens ``index`` .. ``index + count - 1`` end with it. ``endpoint`` wrote it.

    ``events``: what happened since the last one, if the client asked; text may be missing then.
    """

    index: int
    count: int
    text: str
    endpoint: str = ""
    events: tuple[StreamEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of the logical request, whatever legs it took."""

    prompt_tokens: int
    completion_tokens: int
    exact: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """``report`` is the JSON-ready ``disco`` object.

    first_token: when the winner's first content came, in seconds of the event loop's clock; None without any.
    """

    finish_reason: Literal["stop", "length"]
    usage: Usage
    report: dict[str, Any]
    first_token: float | None = None


class TextStream(Protocol):
    """An answer under way. Whoever opened it closes it, whatever becomes of it."""

    @property
    def policy(self) -> str: ...

    @property
    def outcome(self) -> Outcome:
        """Final once the iterator is exhausted or the stream closed."""
        ...

    async def started(self) -> None:
        """Return with the first text, or at the end of a stream without any. Raises what ended it before that.

        Where the client asked for events, return at once: the first of them are there.
        """
        ...

    def __aiter__(self) -> AsyncIterator[Delta]:
        """Raises DiscoError where the answer cannot be completed."""
        ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class EndpointState:
    ready: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Readiness:
    """``ready`` once any endpoint can serve."""

    ready: bool
    endpoints: dict[str, EndpointState]


class StreamService(Protocol):
    """``open`` starts the endpoints. It raises DiscoError where none may serve the request."""

    def open(self, request: ClientRequest) -> TextStream: ...

    def models(self) -> Sequence[str]: ...

    def readiness(self) -> Readiness: ...

    def snapshot(self) -> dict[str, Any]:
        """What goes on at this moment, JSON-ready; never a text."""
        ...

    def retune(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change sections of the live policy; the policy then in force. Raises InvalidRequest and changes nothing."""
        ...
