"""Asking an engine for an answer, and what it gave."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from actors.contract import StreamContract
from actors.engines.base import Engine
from serve_app.core.model import (
    ChatPrompt,
    FinishReason,
    GenerationRequest,
    Handoff,
    Message,
    Prompt,
    Receipt,
    Sampling,
    TokenChunk,
)


def chat(text: str, prefix: str = "") -> ChatPrompt:
    return ChatPrompt((Message("user", text),), prefix)


STORY = chat("Tell me a short story about a fox.")
EMOJI = chat("Repeat: 漢字仮名交じり文 é ü 👩‍👩‍👧")


@dataclass
class Leg:
    receipt: Receipt | None = None
    chunks: list[TokenChunk] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        return [token for chunk in self.chunks for token in chunk.token_ids]

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def finish(self) -> FinishReason | None:
        (finish,) = [chunk.finish for chunk in self.chunks if chunk.finish is not None]
        assert self.chunks[-1].finish is finish
        return finish


def ask(
    prompt: Prompt, tokens: int, handoff: Handoff | None = None, park: float = 0.0, **sampling: float
) -> GenerationRequest:
    chosen = Sampling(max_tokens=tokens, **({"temperature": 0.0} | sampling))
    return GenerationRequest("attempt", prompt, chosen, handoff=handoff, park=park)


async def read(engine: Engine, request: GenerationRequest) -> Leg:
    """To the end, and no item may break the contract."""
    leg = Leg()
    contract = StreamContract(0 if request.handoff is None else request.handoff.next_index)
    async for item in engine.generate(request):
        contract.check(item)
        if isinstance(item, Receipt):
            leg.receipt = item
        else:
            assert item.count == len(item.token_ids)
            leg.chunks.append(item)
    contract.close()
    assert leg.receipt is not None
    assert leg.finish
    return leg


def by_ids(leg: Leg, cut: int) -> Handoff:
    return Handoff("".join(chunk.text for chunk in leg.chunks[:cut]), cut, array("i", leg.ids[:cut]).tobytes())
