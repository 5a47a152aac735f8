"""A generation request as the call that a server understands: how it starts an answer, how it carries one on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from actors.engines.openai_http_client import HttpClient
from actors.engines.openai_http_errors import Failed
from actors.engines.openai_http_template import PromptTemplate
from serve_app.core.errors import EndpointFault, EndpointUnavailable, PromptTooLong, Unsupported
from serve_app.core.model import (
    ChatPrompt,
    ContinuesBy,
    GenerationRequest,
    Message,
    Prompt,
    Sampling,
    TextPrompt,
    TokenPrompt,
)
from serve_app.engine_settings import OpenAIHttpEngineSettings

CHAT: Final = "chat/completions"
RAW: Final = "completions"

#: Extra fields that decide how messages become a prompt.
_OF_THE_TEMPLATE: Final = frozenset({"chat_template", "chat_template_kwargs"})

_HALF: Final = "\N{REPLACEMENT CHARACTER}"

_ALWAYS: Final = ("temperature", "top_p")
#: What leaves the choice of tokens alone, as OpenAI's API defines it.
_NEUTRAL: Final = {"temperature": 1.0, "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


class Continuation(StrEnum):
    """How a server carries on a given beginning of an answer; the words are those of ``engine.continues_by``."""

    IDS = "ids"
    COMPLETION = "completion"
    PREFILL = "prefill"
    PREFIX = "prefix"
    TRAILING = "trailing"
    NOTHING = "nothing"

    @property
    def as_endpoint(self) -> ContinuesBy:
        if self is Continuation.IDS:
            return ContinuesBy.IDS
        return ContinuesBy.NO if self is Continuation.NOTHING else ContinuesBy.TEXT


@dataclass(frozen=True, slots=True)
class Capabilities:
    """``trims``: white space at the end of a given beginning does not survive. ``context_length`` in tokens."""

    continuation: Continuation
    context_length: int
    trims: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """``unsent``: white space at the end of the answer so far that the body leaves out.

    prompt_tokens: tokens of the prompt without the answer so far, where they are known.
    exact: the answer comes with token ids. share_ids: they continue the handoff's.
    """

    path: str
    body: dict[str, Any]
    unsent: str = ""
    prompt_tokens: int | None = None
    exact: bool = False
    share_ids: bool = True

    def within(self, room: int) -> Call:
        """The same call for an answer of at most ``room`` tokens."""
        field = next(name for name in ("max_tokens", "max_completion_tokens") if name in self.body)
        return replace(self, body=self.body | {field: min(room, self.body[field])})


class Calls:
    """Builds calls for one server. Only by ids does that take calls of its own, to the server's tokenizer."""

    def __init__(self, settings: OpenAIHttpEngineSettings, client: HttpClient, template: PromptTemplate | None) -> None:
        self._settings = settings
        self._client = client
        self._template = template

    async def of(self, request: GenerationRequest, able: Capabilities, deadline: float) -> Call:
        """Raises ``Failed`` where a call to the tokenizer fails, else this project's errors."""
        if able.continuation is Continuation.IDS:
            return await self._by_ids(request, able, deadline)
        given = request.handoff.text if request.handoff else ""
        # More than the whole context is a reason for refusal; what the prompt leaves of it, the server knows.
        sampling = replace(request.sampling, max_tokens=min(request.sampling.max_tokens, able.context_length - 1))
        match request.prompt:
            case ChatPrompt() as prompt if self._template is not None:
                return self._by_text(self._template.render(prompt, given), sampling)
            case ChatPrompt(messages, prefix):
                return self._by_message(messages, prefix + given, sampling, able)
            case TextPrompt(text):
                return self._by_text(text + given, sampling)
            case TokenPrompt():
                raise Unsupported("this endpoint takes no token ids; send the prompt as text", "prompt")

    def chat(self, messages: Sequence[Message], given: str, how: Continuation, max_tokens: int = 1) -> dict[str, Any]:
        """The body of a chat call, but for sampling and streaming. ``given``: the answer's beginning."""
        turns: list[dict[str, Any]] = [{"role": m.role, "content": clean(m.content)} for m in messages]
        body = self._body({"messages": turns}, self._settings.max_tokens_field, max_tokens)
        if given:
            last = {"role": "assistant", "content": clean(given)}
            turns.append(last | {"prefix": True} if how is Continuation.PREFIX else last)
            if how is Continuation.PREFILL:
                body |= {"continue_final_message": True, "add_generation_prompt": False}
        return body

    def raw(self, prompt: str | Sequence[int], max_tokens: int = 1) -> dict[str, Any]:
        """The body of a raw completion, but for sampling and streaming."""
        text = clean(prompt) if isinstance(prompt, str) else list(prompt)
        return self._body({"prompt": text}, "max_tokens", max_tokens)

    def _body(self, prompt: dict[str, Any], limit: str, max_tokens: int) -> dict[str, Any]:
        return {"model": self._settings.model, **prompt, limit: max_tokens, **self._settings.extra_body}

    def _by_text(self, prompt: str, sampling: Sampling) -> Call:
        return Call(RAW, self.raw(prompt, sampling.max_tokens) | self._choices(sampling))

    def _by_message(self, messages: Sequence[Message], given: str, sampling: Sampling, able: Capabilities) -> Call:
        if given and able.continuation is Continuation.NOTHING:
            raise EndpointUnavailable("the server can only start an answer, not carry one on")
        sent, unsent = cut_space(given) if able.trims else (given, "")
        body = self.chat(messages, sent, able.continuation, sampling.max_tokens)
        return Call(CHAT, body | self._choices(sampling), unsent)

    async def _by_ids(self, request: GenerationRequest, able: Capabilities, deadline: float) -> Call:
        prompt = await self.tokens(request.prompt, deadline)
        ids, shared, handoff = prompt, True, request.handoff
        if handoff is not None:
            packed = handoff.token_ids
            if packed is not None and len(packed) != handoff.next_index:
                raise EndpointFault("the handoff's ids are not next_index ids")
            if packed is not None and not await self._ends_inside_character(packed, handoff.text, deadline):
                ids = [*prompt, *packed]
            else:
                ids, shared = await self.tokens(request.prompt, deadline, handoff.text), packed is None
        room = able.context_length - len(ids)
        if room <= 0:
            raise PromptTooLong(
                f"the prompt and the answer so far have {len(ids)} tokens, and the server's context holds "
                f"{able.context_length} with the answer; shorten the prompt",
                "messages" if isinstance(request.prompt, ChatPrompt) else "prompt",
            )
        body = self.raw(ids, min(room, request.sampling.max_tokens)) | self._choices(request.sampling)
        return Call(RAW, body | {"return_token_ids": True}, "", len(prompt), exact=True, share_ids=shared)

    async def tokens(self, prompt: Prompt, deadline: float, continuation: str = "") -> list[int]:
        """Ids of the prompt and of a ``continuation`` as the server's tokenizer has them."""
        match prompt:
            case ChatPrompt(messages, prefix):
                turns = [{"role": m.role, "content": clean(m.content)} for m in messages]
                rendering = {
                    name: value for name, value in self._settings.extra_body.items() if name in _OF_THE_TEMPLATE
                }
                ids = await self._tokenize({"messages": turns, "add_generation_prompt": True} | rendering, deadline)
                return ids + await self._plain(prefix + continuation, deadline)
            case TextPrompt(text):
                return await self._tokenize({"prompt": clean(text + continuation)}, deadline)
            case TokenPrompt(token_ids):
                return [*token_ids, *await self._plain(continuation, deadline)]

    async def _plain(self, text: str, deadline: float) -> list[int]:
        if not text:
            return []
        return await self._tokenize({"prompt": clean(text), "add_special_tokens": False}, deadline)

    async def _tokenize(self, body: dict[str, Any], deadline: float) -> list[int]:
        answer = await self._client.post_json(
            "tokenize", {"model": self._settings.model, **body}, deadline, at_root=True
        )
        ids = answer.get("tokens") if isinstance(answer, dict) else None
        if not isinstance(ids, list) or not all(type(token) is int and 0 <= token < 2**31 for token in ids):
            raise Failed(EndpointFault("the server's /tokenize gives no token ids"), status=200)
        return ids

    async def _ends_inside_character(self, ids: Sequence[int], text: str, deadline: float) -> bool:
        """Servers start their text after the given ids and would lose the half of a character in them."""
        answer = await self._client.post_json(
            "detokenize", {"model": self._settings.model, "tokens": list(ids)}, deadline, at_root=True
        )
        whole = answer.get("prompt") if isinstance(answer, dict) else None
        if not isinstance(whole, str):
            raise Failed(EndpointFault("the server's /detokenize gives no text"), status=200)
        return whole.endswith(_HALF) and not text.endswith(_HALF)

    def _choices(self, sampling: Sampling) -> dict[str, Any]:
        """How to choose tokens, and that they shall be streamed. Raises ``Unsupported`` for what must not be sent."""
        omit = self._settings.omit
        wanted: dict[str, Any] = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
        }
        for name, value in wanted.items():
            if name in omit and value != _NEUTRAL[name]:
                raise Unsupported(f"{name}: this endpoint takes its default only; leave the field out", name)
        # Some servers have defaults of their own for these two, hardly any for the penalties.
        chosen = {name: value for name, value in wanted.items() if name in _ALWAYS or value != _NEUTRAL[name]}
        if sampling.seed is not None:
            chosen["seed"] = sampling.seed
        chosen |= {"stream": True, "stream_options": {"include_usage": True}}
        return {name: value for name, value in chosen.items() if name not in omit}


def clean(text: str) -> str:
    """Lone surrogates can come out of JSON; they have no UTF-8 form, and servers refuse them."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def cut_space(text: str) -> tuple[str, str]:
    """The text without white space at its end, and that white space."""
    kept = text.rstrip()
    return kept, text[len(kept) :]
