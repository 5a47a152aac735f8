"""A stage for one StreamSession: short stimuli in, short commands out.

Endpoints are ``cloud`` (dear) and ``phone``, ``laptop`` (cheap). The reader takes 4 tokens per second and a handoff
takes 1 s, so a stream may move once 4 tokens lie unread. Commands come back as tuples:
("start", attempt), ("cancel", attempt), ("emit", index, count, text), ("close", finish) and ("fail", code).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from serve_app.core.cost import CostModel, UnitCost
from serve_app.core.errors import DiscoError, EndpointUnavailable
from serve_app.core.latency import LatencyProfile, LinearTtft
from serve_app.core.legs import Leg
from serve_app.core.migration import MigrationMode, Mover
from serve_app.core.model import (
    ContinuesBy,
    DispatchPlan,
    EndpointInfo,
    EndpointKind,
    FinishReason,
    Launch,
    Receipt,
    TokenChunk,
)
from serve_app.core.protocol import (
    Accepted,
    CancelStream,
    ChunkArrived,
    ClientLeft,
    Close,
    Command,
    Delivered,
    Emit,
    Event,
    Opened,
    SessionConfig,
    StartStream,
    StreamFailed,
    Woke,
)
from serve_app.core.session import StreamSession
from serve_app.core.watch import ENDLESS, Patience, Watch

STOP, LENGTH, PAUSED = FinishReason.STOP, FinishReason.LENGTH, FinishReason.PAUSED
BREAK, OVERLAP = MigrationMode.BREAK, MigrationMode.OVERLAP
DEAR = UnitCost(1e-6, 1e-3)
CHEAP = UnitCost(1e-9, 1e-6)


def endpoint(
    name: str,
    *,
    vocabulary: str | None = "v",
    context: int = 10_000,
    continues: ContinuesBy = ContinuesBy.IDS,
    parks: bool = False,
) -> EndpointInfo:
    kind = EndpointKind.CLOUD if name.startswith("cloud") else EndpointKind.DEVICE
    return EndpointInfo(name, kind, "m", context, vocabulary, continues, can_park=parks)


CLOUD, PHONE, LAPTOP = endpoint("cloud"), endpoint("phone"), endpoint("laptop")


def id_of(word: str) -> int:
    return zlib.crc32(word.encode()) % 1000


class Stage:
    """``launches`` are names, or (name, delay). ``dear`` names the endpoints whose tokens cost more.

    ``sick`` may be changed while the session runs.
    """

    def __init__(
        self,
        *launches: str | tuple[str, float],
        infos: Sequence[EndpointInfo] = (CLOUD, PHONE),
        mode: MigrationMode | None = None,
        dear: Sequence[str] = ("cloud", "cloud2"),
        patience: Patience = ENDLESS,
        sick: Sequence[str] = (),
        **config: Any,
    ) -> None:
        self.sick = set(sick)
        watch = Watch(lambda *_: patience, lambda name: name in self.sick)
        pairs = [(launch, 0.0) if isinstance(launch, str) else launch for launch in launches]
        plan = DispatchPlan(tuple(Launch(*pair) for pair in pairs), "test", "test")
        settings: dict[str, Any] = {"max_tokens": 100, "prompt_tokens": 10, "rate": 4.0, **config}
        self.costs = CostModel({info.id: DEAR if info.id in dear else CHEAP for info in infos})
        profile = LatencyProfile(LinearTtft(0.0, 1.0), 1000.0, 20.0)
        mover = Mover(mode, 0.0, self.costs, lambda _: profile, lambda n, top: float(top - n), lambda _: False)
        self.session = StreamSession("r", SessionConfig(**settings), plan, infos, mover, watch)
        self.now = 0.0
        self.raw: list[Command] = []
        self.text = ""
        self._next: dict[str, int] = {}

    def tell(self, event: Event) -> list[tuple[Any, ...]]:
        self.raw = self.session.handle(event, self.now)
        for command in self.raw:
            if isinstance(command, StartStream):
                self._next[command.attempt] = command.handoff.next_index if command.handoff else 0
            elif isinstance(command, Emit):
                self.text += command.text
        return [short(command) for command in self.raw]

    def open(self) -> list[tuple[Any, ...]]:
        return self.tell(Opened())

    def accept(self, name: str, prompt_tokens: int | None = 10, **receipt: Any) -> list[tuple[Any, ...]]:
        return self.tell(Accepted(self.leg(name).attempt, Receipt(prompt_tokens, **receipt)))

    def say(
        self, name: str, *words: str, at: int | None = None, finish: FinishReason | None = None, open_tokens: int = 0
    ) -> list[tuple[Any, ...]]:
        """One chunk of the endpoint's latest leg, one token a word; an empty word is a token without whole text."""
        attempt = self.leg(name).attempt
        index = self._next[attempt] if at is None else at
        self._next[attempt] = index + len(words)
        ids = tuple(id_of(word) for word in words)
        return self.tell(ChunkArrived(attempt, TokenChunk(index, "".join(words), ids, len(words), open_tokens, finish)))

    def fail(self, name: str, error: DiscoError | None = None) -> list[tuple[Any, ...]]:
        return self.tell(StreamFailed(self.leg(name).attempt, error or EndpointUnavailable("gone", name)))

    def wake(self, now: float) -> list[tuple[Any, ...]]:
        self.now = now
        return self.tell(Woke())

    def deliver(self, tokens: int) -> list[tuple[Any, ...]]:
        return self.tell(Delivered(tokens))

    def leave(self) -> list[tuple[Any, ...]]:
        return self.tell(ClientLeft())

    def leg(self, name: str) -> Leg:
        """An attempt, or the latest leg of an endpoint."""
        return next(leg for leg in reversed(self.session.legs) if name in (leg.attempt, leg.info.id))

    @property
    def outcomes(self) -> list[str]:
        return [leg.outcome.value for leg in self.session.legs]

    @property
    def starts(self) -> list[StartStream]:
        """Those of the last stimulus."""
        return [command for command in self.raw if isinstance(command, StartStream)]


def short(command: Command) -> tuple[Any, ...]:
    match command:
        case StartStream():
            return ("start", command.attempt)
        case CancelStream(attempt):
            return ("cancel", attempt)
        case Emit(index, count, text, _):
            return ("emit", index, count, text)
        case Close(finish, None):
            return ("close", finish)
        case Close(_, error):
            assert error is not None
            return ("fail", error.code)
