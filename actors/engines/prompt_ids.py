"""From a request to the ids that an engine evaluates, alike for every engine that tokenises by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from actors.engines.chat_template import ChatTemplate, Segment
from serve_app.core.errors import EndpointFault, InvalidRequest, PromptTooLong, Unsupported
from serve_app.core.model import ChatPrompt, GenerationRequest, Prompt, TextPrompt, TokenPrompt


@dataclass(frozen=True, slots=True)
class PromptEncoder:
    """``bos``: the id that every text begins with; None where the model wants none. ``size`` ids are known."""

    tokenize: Callable[[Iterable[Segment]], list[int]]
    template: ChatTemplate | None
    bos: int | None
    size: int

    def encode(self, prompt: Prompt, continuation: str = "") -> list[int]:
        """Ids of the prompt followed by ``continuation``, joined as text first where the prompt is text.

        BOS comes exactly once where the model wants one. Ids out of range are ``Unsupported``.
        """
        match prompt:
            case ChatPrompt():
                if self.template is None:
                    raise Unsupported("this model has no chat template; send a plain prompt instead", "messages")
                ids = self.tokenize(self.template.render(prompt, continuation))
            case TextPrompt(text):
                ids = self.tokenize([Segment(text + continuation, controls=False)])
            case TokenPrompt(token_ids):
                if not all(0 <= token < self.size for token in token_ids):
                    raise Unsupported(f"a token id is not in this model's vocabulary of {self.size}", "prompt")
                return [*token_ids, *self.tokenize([Segment(continuation, controls=False)])]
        if self.bos is not None and ids[:1] != [self.bos]:
            ids.insert(0, self.bos)
        return ids


class Encodes(Protocol):
    """The part of a vocabulary that ``leg_input`` needs."""

    @property
    def size(self) -> int: ...

    def encode(self, prompt: Prompt, continuation: str = "") -> list[int]: ...


@dataclass(frozen=True, slots=True)
class LegInput:
    """``ids`` to evaluate; ``prompt_tokens`` of them are the prompt's, the rest the ``accepted`` answer so far.

    ``primer``: the ids that a detokenizer has to see first. By text the other leg's last character is whole, so there
    are none; by ids it may not be.
    """

    ids: list[int]
    prompt_tokens: int
    accepted: list[int]
    primer: list[int]


def leg_input(vocabulary: Encodes, request: GenerationRequest, context_length: int) -> LegInput:
    """Raises ``InvalidRequest`` for a prompt that cannot be evaluated, ``EndpointFault`` for an impossible handoff."""
    ids = vocabulary.encode(request.prompt)
    prompt_tokens = len(ids)
    accepted: list[int] = []
    primer: list[int] = []
    handoff = request.handoff
    if handoff is not None:
        packed = handoff.token_ids
        if packed is None:
            ids = vocabulary.encode(request.prompt, handoff.text)
            accepted = ids[prompt_tokens:]
        elif len(packed) != handoff.next_index or not all(0 <= token < vocabulary.size for token in packed):
            raise EndpointFault("the handoff's ids are not next_index ids of this vocabulary")
        else:
            accepted = primer = list(packed)
            ids = [*ids, *accepted]
    if not ids:
        raise InvalidRequest("the prompt has no tokens; send at least one", "prompt")
    if len(ids) >= context_length:
        raise PromptTooLong(
            f"the prompt and the answer so far have {len(ids)} tokens, and the context holds {context_length} "
            "with the answer; shorten the prompt",
            "messages" if isinstance(request.prompt, ChatPrompt) else "prompt",
        )
    return LegInput(ids, prompt_tokens, accepted, primer)
