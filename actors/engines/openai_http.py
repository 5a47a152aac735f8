"""A server with OpenAI's HTTP API: a commercial service, vLLM, llama-server, Ollama, LM Studio."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Final

from pydantic import SecretStr

from actors.engines.base import EngineInfo
from actors.engines.openai_http_answer import Answer
from actors.engines.openai_http_calls import Call, Calls, Capabilities, Continuation
from actors.engines.openai_http_chunks import read_event, read_stray
from actors.engines.openai_http_client import EventStream, HttpClient, prompt_field
from actors.engines.openai_http_errors import Failed
from actors.engines.openai_http_probe import QUESTION, Probe
from actors.engines.openai_http_retry import Retries, pauses
from actors.engines.openai_http_sizes import PromptSizes
from actors.engines.openai_http_template import PromptTemplate
from serve_app.core.errors import DiscoError, EndpointUnavailable
from serve_app.core.model import (
    ChatPrompt,
    GenerationRequest,
    Receipt,
    Sampling,
    StreamItem,
    TokenChunk,
)
from serve_app.engine_settings import OpenAIHttpEngineSettings

#: Seconds that a server has for its usage after it said why the answer ended.
_TRAILER: Final = 2.0

#: Seconds that a server has to end the response after the last event, so that the connection can be used again.
_DRAIN: Final = 0.1

#: Seconds between two looks at a server that is not there yet, at most.
_LONGEST_PAUSE: Final = 10.0

logger = logging.getLogger(__name__)


class OpenAIHttpEngine:
    """The server may come and go. Until it was seen for the first time, ``info`` and ``generate`` say what is wrong.

    ``first_pause``: seconds before it is looked for again; the pauses grow from there. ``key``: instead of the one that
    the settings name.
    """

    def __init__(
        self, settings: OpenAIHttpEngineSettings, first_pause: float = 0.5, key: SecretStr | None = None
    ) -> None:
        self._settings = settings
        self._key = key
        self._first_pause = first_pause
        self._sizes = PromptSizes()
        self._server: _Server | None = None
        self._able: Capabilities | None = None
        self._reason = "the engine was not started"
        self._looked = asyncio.Event()
        self._search: asyncio.Task[None] | None = None

    @property
    def info(self) -> EngineInfo:
        able = self._known()
        by_ids = able.continuation is Continuation.IDS
        return EngineInfo(
            model=self._settings.model,
            context_length=able.context_length,
            vocabulary=(self._settings.vocabulary or self._own_vocabulary()) if by_ids else None,
            continues_by=able.continuation.as_endpoint,
            counts_tokens=by_ids,
        )

    async def start(self) -> None:
        """Raises only for what no waiting can mend; a server that is not ready is looked for in the background."""
        try:
            key = self._key or self._settings.api_key()
        except ValueError as error:
            raise EndpointUnavailable(f"engine.{error}") from None
        path = self._settings.chat_template
        template = None if path is None else PromptTemplate.load(path, self._settings.eos_token)
        client = HttpClient(
            self._settings.base_url, key, self._settings.connect_seconds, address=self._settings.address
        )
        await client.open()
        self._reason = "waiting for the server's first answer"
        calls = Calls(self._settings, client, template)
        self._server = _Server(client, calls, Probe(self._settings, client, calls, template, self._deadline))
        self._search = asyncio.create_task(self._look_for(self._server), name=f"look for {self._settings.model}")
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.connect_seconds):
                await self._looked.wait()

    async def close(self) -> None:
        server, self._server, self._able = self._server, None, None
        self._reason = "the engine was closed"
        if self._search is not None:
            self._search.cancel()
            await asyncio.wait({self._search})
        if server is not None:
            await server.client.close()

    def generate(self, request: GenerationRequest) -> AsyncGenerator[StreamItem, None]:
        return self._stream(request, None)

    async def _stream(self, request: GenerationRequest, able: Capabilities | None) -> AsyncGenerator[StreamItem, None]:
        """``able``: None for what was found out about the server."""
        able = able or self._known()
        server = self._server
        if server is None:
            raise EndpointUnavailable(self._reason)
        deadline = self._deadline()
        retries = Retries(self._settings.retries, self._settings.retry_seconds, request.attempt_id)
        call: Call | None = None
        answer: Answer | None = None
        received = shrunk = False
        while True:
            try:
                call = call or await server.calls.of(request, able, deadline)
                answer = _answer(request, call)
                async with server.client.stream(call.path, call.body, deadline) as events:
                    if not received:
                        received = True
                        counted = call.prompt_tokens
                        yield Receipt(self._sizes.estimate(request.prompt) if counted is None else counted)
                    finished = False
                    while not finished:
                        chunk = await self._next(events, answer, prompt_field(call.body), deadline)
                        finished = chunk.finish is not None
                        if finished:
                            # Nobody has to ask for more after the last chunk.
                            self._learn(request, answer)
                        yield chunk
            except Failed as failed:
                if answer is not None and answer.started:
                    raise failed.error from None
                if call is not None and failed.room and not shrunk:
                    call, shrunk = call.within(failed.room), True
                    continue
                pause = retries.after(failed, deadline - asyncio.get_running_loop().time())
                if pause is None:
                    raise failed.error from None
            else:
                return
            await asyncio.sleep(pause)

    async def _next(self, events: EventStream, answer: Answer, param: str, first_deadline: float) -> TokenChunk:
        """The next chunk; the last one has a finish. Raises ``Failed``, or ``EndpointFault`` for a broken stream."""
        clock = asyncio.get_running_loop().time
        idle = clock() + self._settings.idle_seconds
        while True:
            deadline = idle if answer.started else first_deadline
            if answer.finish is not None:
                deadline = min(deadline, clock() + _TRAILER)
            try:
                event = await events.next(deadline)
            except Failed:
                if answer.finish is None:
                    raise
                return answer.end()
            piece = None if event is None else read_event(event, param)
            if piece is None:
                failed = read_stray(events.stray, param) if events.stray and answer.finish is None else None
                if failed is not None:
                    raise failed
                await events.drain(clock() + _DRAIN)
                return answer.end()
            chunk = answer.feed(piece)
            if chunk is not None:
                return chunk
            if answer.overrun:
                return answer.end()
            if piece.generated:
                idle = clock() + self._settings.idle_seconds

    def _learn(self, request: GenerationRequest, answer: Answer) -> None:
        if answer.prompt_tokens is not None:
            given = request.handoff.text if request.handoff else ""
            self._sizes.learn(request.prompt, given, answer.prompt_tokens)

    async def _look_for(self, server: _Server) -> None:
        for pause in pauses(self._first_pause, _LONGEST_PAUSE):
            try:
                able = await server.probe.capabilities()
                if self._settings.warm_up:
                    await self._warm_up(able)
            except Failed as failed:
                self._reason = failed.error.message
            except DiscoError as error:
                self._reason = error.message
            except Exception as error:  # noqa: BLE001 - whatever it is, the next look may go better
                self._reason = f"looking at the server raised {type(error).__name__}"
            else:
                self._able = able
                logger.info("%s continues by: %s", self._settings.model, able.continuation)
                return
            finally:
                self._looked.set()
            await asyncio.sleep(pause)

    async def _warm_up(self, able: Capabilities) -> None:
        request = GenerationRequest("warm-up", ChatPrompt(QUESTION), Sampling(max_tokens=1))
        async with aclosing(self._stream(request, able)) as items:
            async for _ in items:
                pass

    def _known(self) -> Capabilities:
        if self._able is None:
            raise EndpointUnavailable(self._reason)
        return self._able

    def _own_vocabulary(self) -> str:
        """Ids are good for this server and model alone, unless the operator says otherwise."""
        address = f"{self._settings.base_url}|{self._settings.model}"
        return f"openai_http:{hashlib.sha256(address.encode()).hexdigest()[:16]}"

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._settings.first_token_seconds


@dataclass(frozen=True, slots=True)
class _Server:
    client: HttpClient
    calls: Calls
    probe: Probe


def _answer(request: GenerationRequest, call: Call) -> Answer:
    index = request.handoff.next_index if request.handoff else 0
    return Answer(index, request.sampling.max_tokens, exact=call.exact, share_ids=call.share_ids, unsent=call.unsent)
