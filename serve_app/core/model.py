"""The values that travel between router, session and endpoints. Frozen, picklable, without behaviour of their own."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

EndpointId: TypeAlias = str
AttemptId: TypeAlias = str


class EndpointKind(StrEnum):
    """The two sides of the paper (section 3): what costs money, and what costs energy."""

    CLOUD = "cloud"
    DEVICE = "device"


class Pin(StrEnum):
    """A promise about where a request may run; never broken, not even to rescue a stream."""

    DEVICE_ONLY = "device_only"
    CLOUD_ONLY = "cloud_only"

    @property
    def kind(self) -> EndpointKind:
        return EndpointKind.DEVICE if self is Pin.DEVICE_ONLY else EndpointKind.CLOUD


class ContinuesBy(StrEnum):
    """How an endpoint can carry on a text that another one began."""

    IDS = "ids"
    TEXT = "text"
    NO = "no"


class FinishReason(StrEnum):
    """Why a leg ended. PAUSED never reaches a client: the leg used up its allowance ahead of the reader."""

    STOP = "stop"
    LENGTH = "length"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class Message:
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages for the endpoint's own chat template; ``prefix`` is the beginning of the answer, given by the caller."""

    messages: tuple[Message, ...]
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A raw prompt: no template is applied."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A raw prompt as token ids of the endpoint's vocabulary."""

    token_ids: tuple[int, ...]


Prompt: TypeAlias = ChatPrompt | TextPrompt | TokenPrompt


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to choose tokens. ``max_tokens`` bounds the leg; stop strings are the router's business, not an engine's."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0


@dataclass(frozen=True, slots=True)
class Handoff:
    """The token buffer that travels in an actor call: what the stream holds so far. Never KV state.

    ``next_index`` is the index of the first token the receiver owes. ``packed_ids`` holds exactly ``next_index`` ids
    as little-endian int32 when both vocabularies are equal; otherwise the receiver tokenises ``text`` again.
    """

    text: str
    next_index: int
    packed_ids: bytes | None = None

    @property
    def token_ids(self) -> tuple[int, ...] | None:
        if self.packed_ids is None:
            return None
        ids = array("i")
        ids.frombytes(self.packed_ids)
        return tuple(ids)


@dataclass(frozen=True, slots=True)
class Pace:
    """How far and how promptly a leg may run ahead of its reader.

    rate: tokens per second the reader consumes (the paper's r_c), or None when unknown. Then the leg ends as PAUSED
        after ``ahead_limit`` tokens and is resumed by a Handoff.
    ahead_limit: tokens the leg may be ahead of the reader's clock.
    slack: seconds. An item (empty if need be) leaves at least once per slack while the leg lives.
    hold: tokens not yet due may be held back and batched, as long as each leaves at least one slack before it is due
        (paced delivery). False: every token leaves at once (eager delivery).
    lead: unread tokens when the leg starts (0 for the first leg; its clock starts at its first token).
    """

    rate: float | None = None
    ahead_limit: int = 128
    slack: float = 0.5
    hold: bool = False
    lead: float = 0.0


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One attempt at one endpoint. ``park``: seconds to keep a finished prefill if cancelled before the first token."""

    attempt_id: AttemptId
    prompt: Prompt
    sampling: Sampling
    handoff: Handoff | None = None
    pace: Pace = Pace()
    park: float = 0.0
    trace: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Receipt:
    """First item of a stream: the endpoint admitted the request to a slot and counted its prompt.

    prompt_tokens: tokens of the rendered prompt, without the handoff's; None where the endpoint cannot count.
    queued: seconds spent waiting for a slot. reused: tokens of prompt and handoff whose prefill was already done.
    replica: which one of the endpoint's; empty where that is unknown.
    """

    prompt_tokens: int | None
    queued: float = 0.0
    reused: int = 0
    replica: str = ""


@dataclass(frozen=True, slots=True)
class TokenChunk:
    """One or more consecutive tokens of the logical request.

    index: position of the first token; a leg starts exactly at its handoff's ``next_index``.
    text: whole characters only; a token that ends inside a character contributes to a later chunk's text.
    token_ids: ``count`` ids, or empty where the endpoint has none.
    count: number of tokens; 0 makes the chunk a mere sign of life, or the bearer of ``finish``.
    open_tokens: trailing tokens of the stream, this chunk included, whose character is not whole yet.
    imitation_late: seconds by which the real engine missed the latency it imitates.
    """

    index: int
    text: str
    token_ids: tuple[int, ...] = ()
    count: int = 1
    open_tokens: int = 0
    finish: FinishReason | None = None
    imitation_late: float = 0.0

    def __reduce__(self) -> tuple[type[TokenChunk], tuple[object, ...]]:
        # Every token is pickled once; what dataclasses do by themselves takes six times as long.
        fields = (self.index, self.text, self.token_ids, self.count, self.open_tokens, self.finish)
        return TokenChunk, (*fields, self.imitation_late)


StreamItem: TypeAlias = Receipt | TokenChunk


@dataclass(frozen=True, slots=True)
class EndpointInfo:
    """What the router knows about an endpoint.

    vocabulary: fingerprint of its tokenizer; equal fingerprints mean equal ids. None: unknown, hand over by text.
    context_length: tokens of prompt plus answer. slots: concurrent streams per replica.
    most_replicas: how many there may be; a call reaches any of them.
    imitates: name of the latency profile a shaped endpoint reproduces.
    owners: names of the API keys that alone may use it; empty: everybody may.
    """

    id: EndpointId
    kind: EndpointKind
    model: str
    context_length: int
    vocabulary: str | None = None
    continues_by: ContinuesBy = ContinuesBy.IDS
    counts_tokens: bool = True
    can_park: bool = False
    slots: int = 1
    most_replicas: int = 1
    imitates: str | None = None
    owners: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Launch:
    """Start ``endpoint`` ``delay`` seconds after the request arrived (w(l) for a hedge)."""

    endpoint: EndpointId
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class DispatchPlan:
    """One launch is plain dispatch, two at 0 a race, a delay a wait-time hedge. Sorted by delay.

    ``avoided``: endpoints that the plan had to do without, because they fail too often.
    """

    launches: tuple[Launch, ...]
    policy: str
    reason: str
    avoided: tuple[EndpointId, ...] = ()
