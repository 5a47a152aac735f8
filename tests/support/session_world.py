"""A toy world around a StreamSession: endpoints whose every token hashes its whole prefix, and a reader.

It checks the invariants after every event, so a test only has to choose what happens.
"""

from __future__ import annotations

import zlib
from array import array
from dataclasses import dataclass, field

from serve_app.core.cost import CostModel, UnitCost
from serve_app.core.errors import EndpointUnavailable
from serve_app.core.latency import LatencyProfile, LinearTtft
from serve_app.core.migration import MigrationMode, Mover
from serve_app.core.model import (
    DispatchPlan,
    EndpointInfo,
    EndpointKind,
    FinishReason,
    Receipt,
    TokenChunk,
)
from serve_app.core.protocol import (
    Accepted,
    CancelStream,
    ChunkArrived,
    Close,
    Command,
    Emit,
    Event,
    Phase,
    SessionConfig,
    StartStream,
    StreamFailed,
)
from serve_app.core.session import StreamSession
from serve_app.core.watch import ENDLESS, Patience, Watch


def token_after(salt: int, prefix: tuple[int, ...]) -> int:
    """The next token: a hash of all before it and of who writes."""
    return zlib.crc32(array("q", (salt, *prefix)).tobytes()) % 100_000


def is_opener(prefix: tuple[int, ...], token: int) -> bool:
    """A token that ends inside a character: its text comes with the next one."""
    return token % 4 == 0 and not ends_open(prefix)


def ends_open(prefix: tuple[int, ...]) -> bool:
    return bool(prefix) and is_opener(prefix[:-1], prefix[-1])


def text_of(prefix: tuple[int, ...], token: int) -> str:
    if is_opener(prefix, token):
        return ""
    return f"{prefix[-1]}é{token} " if ends_open(prefix) else f"{token} "


def ids_of(text: str) -> tuple[int, ...]:
    return tuple(int(part) for word in text.split() for part in word.split("é"))


def full_text(ids: tuple[int, ...]) -> str:
    return "".join(text_of(ids[:i], token) for i, token in enumerate(ids))


@dataclass
class Writer:
    """An endpoint's side of one leg. ``length``: where its text ends (EOS)."""

    attempt: str
    salt: int
    ids: tuple[int, ...]
    budget: int
    length: int
    cancelled: bool = False
    finished: bool = False
    accepted: bool = False
    unsent: list[TokenChunk] = field(default_factory=list)

    def write(self, tokens: int) -> TokenChunk:
        start, text = len(self.ids), ""
        for _ in range(min(tokens, self.budget, max(0, self.length - len(self.ids)))):
            token = token_after(self.salt, self.ids)
            text += text_of(self.ids, token)
            self.ids += (token,)
            self.budget -= 1
        finish = None
        if len(self.ids) >= self.length:
            finish = FinishReason.STOP
        elif self.budget == 0:
            finish = FinishReason.LENGTH
        self.finished = finish is not None
        fresh = self.ids[start:]
        return TokenChunk(start, text, fresh, len(fresh), int(ends_open(self.ids)), finish)


@dataclass
class World:
    """``salts``: equal ones make endpoints write the same text. ``vocabulary`` None hands over by text."""

    infos: tuple[EndpointInfo, ...]
    plan: DispatchPlan
    config: SessionConfig
    mode: MigrationMode | None
    salts: dict[str, int]
    dear: frozenset[str]
    length: int = 40
    handover: float = 0.2
    patience: Patience = ENDLESS
    sick: frozenset[str] = frozenset()
    now: float = 100.0
    writers: dict[str, Writer] = field(default_factory=dict)
    started: list[StartStream] = field(default_factory=list)
    emitted: str = ""
    emitted_tokens: int = 0
    close: Close | None = None

    def __post_init__(self) -> None:
        unit = {i.id: UnitCost(1e-9, 1e-3 if i.id in self.dear else 1e-6) for i in self.infos}
        profile = LatencyProfile(LinearTtft(0.0, self.handover), prefill_rate=1e9, decode_rate=20.0)
        remaining = lambda n, top: float(top - n)  # noqa: E731
        mover = Mover(self.mode, 0.0, CostModel(unit), lambda _: profile, remaining, lambda _: False)
        watch = Watch(lambda *_: self.patience, self.sick.__contains__)
        self.session = StreamSession("r", self.config, self.plan, self.infos, mover, watch)

    def tell(self, event: Event) -> list[Command]:
        was_closed = self.close is not None
        commands = self.session.handle(event, self.now)
        assert not (was_closed and commands), "no command after Close"
        for command in commands:
            self._obey(command)
        self.check()
        return commands

    def _obey(self, command: Command) -> None:
        assert self.close is None, "Close is the last command"
        match command:
            case StartStream(attempt, endpoint, max_tokens, _, handoff, _):
                assert attempt not in self.writers
                ids: tuple[int, ...] = ()
                if handoff is not None:
                    ids = handoff.token_ids if handoff.token_ids is not None else ids_of(handoff.text)
                    assert len(ids) == handoff.next_index
                self.writers[attempt] = Writer(attempt, self.salts[endpoint], ids, max_tokens, self.length)
                self.started.append(command)
            case CancelStream(attempt):
                assert not self.writers[attempt].cancelled, "cancelled twice"
                self.writers[attempt].cancelled = True
            case Emit(index, count, text, _):
                assert index == self.emitted_tokens, "emitted in order, nothing twice, nothing lost"
                self.emitted_tokens += count
                self.emitted += text
            case Close():
                self.close = command

    # --- what can happen ----------------------------------------------------------------------------------------

    @property
    def running(self) -> list[Writer]:
        return [w for w in self.writers.values() if not w.cancelled and not w.finished]

    def accept(self, writer: Writer) -> None:
        writer.accepted = True
        self.tell(Accepted(writer.attempt, Receipt(prompt_tokens=self.config.prompt_tokens)))

    def send(self, writer: Writer, tokens: int = 1) -> None:
        self.tell(ChunkArrived(writer.attempt, writer.write(tokens)))

    def fail(self, writer: Writer) -> None:
        writer.finished = True
        self.tell(StreamFailed(writer.attempt, EndpointUnavailable("gone", writer.attempt)))

    # --- invariants ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        session, buffer = self.session, self.session.buffer
        assert buffer.accepted <= self.config.max_tokens
        assert buffer.delivered <= buffer.releasable <= buffer.accepted
        assert self.emitted_tokens == buffer.releasable
        if self.close is not None:
            assert all(w.cancelled or w.finished for w in self.writers.values()), "a leg outlived the stream"
            return
        waiting_for_reader = session.phase is Phase.PAUSED and buffer.releasable > buffer.delivered
        assert self.running or waiting_for_reader or session.phase is Phase.PREFILL
        assert session.wake_at is not None
        self.check_lineage()

    def check_lineage(self) -> None:
        """What is shown is a prefix of what the owner believes to have been written."""
        owner = self.session._owner
        if owner is not None:
            assert full_text(self.writers[owner.attempt].ids).startswith(self.emitted)


def info(name: str, kind: EndpointKind, vocabulary: str | None = "v", **more: object) -> EndpointInfo:
    return EndpointInfo(name, kind, "m", 100_000, vocabulary, **more)  # type: ignore[arg-type]
