"""Finding out what a server can do, by a few requests for one token each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from actors.engines.openai_http_calls import CHAT, RAW, Calls, Capabilities, Continuation
from actors.engines.openai_http_client import HttpClient
from actors.engines.openai_http_errors import Failed
from actors.engines.openai_http_template import PromptTemplate
from serve_app.core.model import ChatPrompt, Message
from serve_app.engine_settings import OpenAIHttpEngineSettings

QUESTION: Final = (Message("user", "Count."),)
ONCE: Final = "1\n2\n3\n4"
TWICE: Final = f"{ONCE}\n{ONCE}"
SPACED: Final = f"{ONCE} \n\n"

#: Every digit and line break is a token of its own in common vocabularies; a count below this is no count of tokens.
_LEAST_TOKENS: Final = 5

#: Statuses by which servers refuse a field, a route or a form of messages that they do not know; 200 is a web page.
_UNKNOWN: Final = frozenset({200, 400, 404, 405, 415, 422, 500, 501})


class Probe:
    """Every method raises ``Failed`` where the server is not ready, and takes a refusal for an answer."""

    def __init__(
        self,
        settings: OpenAIHttpEngineSettings,
        client: HttpClient,
        calls: Calls,
        template: PromptTemplate | None,
        deadline: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._client = client
        self._calls = calls
        self._template = template
        self._deadline = deadline

    async def capabilities(self) -> Capabilities:
        """As declared; where ``continues_by`` is probe, the most exact way that the server proves to know."""
        context = await self._context_length()
        declared = self._settings.continues_by
        if declared != "probe":
            return Capabilities(Continuation(declared), context, self._settings.trims_prefill)
        if await self._takes_ids():
            return Capabilities(Continuation.IDS, context)
        if self._template is not None:
            same = await self._renders_alike(self._template)
            return Capabilities(Continuation.COMPLETION if same else Continuation.NOTHING, context)
        return await self._by_message(context)

    async def _context_length(self) -> int:
        """The server's own figure, where its list of models has one: vLLM's max_model_len, llama-server's n_ctx."""
        try:
            answer = await self._client.get_json("models", self._deadline())
        except Failed as failed:
            # A key may be good for answers and not for this.
            if failed.status not in _UNKNOWN | {403}:
                raise
            return self._settings.context_length
        models = answer.get("data") if isinstance(answer, dict) else None
        for model in models if isinstance(models, list) else []:
            if isinstance(model, dict) and model.get("id") == self._settings.model:
                meta = model.get("meta")
                for figure in (model.get("max_model_len"), meta.get("n_ctx") if isinstance(meta, dict) else None):
                    if type(figure) is int and figure > 0:
                        return figure
        return self._settings.context_length

    async def _takes_ids(self) -> bool:
        """It tokenises messages, takes ids for a prompt, and gives the ids that it generates."""
        try:
            ids = await self._calls.tokens(ChatPrompt(QUESTION), self._deadline())
            await self._client.post_json(
                "detokenize", {"model": self._settings.model, "tokens": ids}, self._deadline(), at_root=True
            )
        except Failed as failed:
            # What a service says of routes beside its API, that a key is needed perhaps, says nothing about the API.
            if failed.status is None or failed.retry_after is not None:
                raise
            return False
        answer = await self._ask(RAW, self._calls.raw(ids) | {"return_token_ids": True}) if ids else None
        choices = answer.get("choices") if isinstance(answer, dict) else None
        given = choices[0].get("token_ids") if choices and isinstance(choices[0], dict) else None
        return isinstance(given, list) and bool(given)

    async def _renders_alike(self, template: PromptTemplate) -> bool:
        """The operator's template makes as many tokens of a question as the server's own, BOS included."""
        mine = _prompt_tokens(await self._ask(RAW, self._calls.raw(template.render(ChatPrompt(QUESTION)))))
        return mine is not None and mine == await self._chat_tokens("", Continuation.NOTHING)

    async def _by_message(self, context: int) -> Capabilities:
        """By counts: a last message that is carried on adds its own tokens, and nothing that ends or opens a turn."""
        plain = await self._chat_tokens("", Continuation.NOTHING)
        if plain is not None:
            for how in (Continuation.PREFILL, Continuation.PREFIX, Continuation.TRAILING):
                once, twice = [await self._chat_tokens(given, how) for given in (ONCE, TWICE)]
                if once is None or twice is None or once - plain < _LEAST_TOKENS:
                    continue
                if twice - once == once - plain + 1:
                    spaced = await self._chat_tokens(SPACED, how)
                    return Capabilities(how, context, trims=spaced is None or spaced <= once)
        return Capabilities(Continuation.NOTHING, context)

    async def _chat_tokens(self, given: str, how: Continuation) -> int | None:
        return _prompt_tokens(await self._ask(CHAT, self._calls.chat(QUESTION, given, how)))

    async def _ask(self, path: str, body: dict[str, Any]) -> Any:
        """None where the server refuses."""
        try:
            return await self._client.post_json(path, body, self._deadline())
        except Failed as failed:
            if failed.status in _UNKNOWN:
                return None
            raise


def _prompt_tokens(answer: Any) -> int | None:
    usage = answer.get("usage") if isinstance(answer, dict) else None
    count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return count if type(count) is int and count > 0 else None
