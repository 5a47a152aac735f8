"""A server with OpenAI's HTTP API whose every token is a byte and whose every answer is known.

It answers any conversation with ``text``: the model goes on from whatever of it the rendered prompt ends with, so a
text that several legs wrote equals ``text`` only if each prompt ended with exactly what was written before.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web
from aiohttp.test_utils import TestServer

BOS, OPEN, CLOSE = 256, 257, 258
CONTROLS = {"<s>": BOS, "<|im_start|>": OPEN, "<|im_end|>": CLOSE}
NAMES = {token: name for name, token in CONTROLS.items()}
ANSWER = "<|im_start|>assistant\n"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTEXT = 4096


def tokenize(text: str, *, bos: bool = False) -> list[int]:
    ids = [BOS] if bos else []
    for part in re.split("(" + "|".join(map(re.escape, CONTROLS)) + ")", text):
        ids += [CONTROLS[part]] if part in CONTROLS else part.encode()
    return ids


def detokenize(ids: list[int]) -> str:
    raw = b"".join(NAMES[token].encode() if token in NAMES else bytes([token]) for token in ids)
    return raw.decode("utf-8", "replace")


@dataclass
class FakeServer:
    """``continues``: what it understands of prefill, prefix, trailing. ``trims``: its template strips messages.

    strict: it refuses fields it does not know. usage: at the end, with every piece, or never. ids: as vLLM has them.
    """

    text: str = "It is blue."
    continues: Collection[str] = ()
    trims: bool = False
    strict: bool = False
    usage: Literal["end", "always", "never"] = "end"
    ids: bool = False
    raw: bool = True
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        if self.raw:
            app.router.add_post("/v1/completions", self._completion)
        if self.ids:
            app.router.add_post("/tokenize", self._tokenize)
            app.router.add_post("/detokenize", self._detokenize)
        async with TestServer(app) as server:
            yield str(server.make_url("/v1"))

    def streamed(self) -> list[dict[str, Any]]:
        return [body for _, body in self.calls if body.get("stream")]

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "fake", "max_model_len": CONTEXT}]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await self._note(request)
        if self.strict and ("continue_final_message" in body or any("prefix" in m for m in body["messages"])):
            return web.json_response({"error": {"code": "unknown_parameter", "message": "?"}}, status=400)
        return await self._answer(request, body, self._render(body["messages"], body), chat=True)

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        body = await self._note(request)
        prompt = body["prompt"]
        ids = tokenize(prompt, bos=True) if isinstance(prompt, str) else prompt
        return await self._answer(request, body, ids, chat=False)

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await self._note(request)
        if "messages" in body:
            ids = self._render(body["messages"], {})
        else:
            ids = tokenize(body["prompt"], bos=body.get("add_special_tokens", True))
        return web.json_response({"tokens": ids, "count": len(ids), "max_model_len": CONTEXT})

    async def _detokenize(self, request: web.Request) -> web.Response:
        body = await self._note(request)
        return web.json_response({"prompt": detokenize(body["tokens"])})

    async def _note(self, request: web.Request) -> dict[str, Any]:
        body: dict[str, Any] = await request.json()
        self.calls.append((request.path, body))
        return body

    def _render(self, messages: list[dict[str, Any]], body: dict[str, Any]) -> list[int]:
        contents = [m["content"].strip() if self.trims else m["content"] for m in messages]
        turns = [f"<|im_start|>{m['role']}\n{text}<|im_end|>\n" for m, text in zip(messages, contents, strict=True)]
        how = "prefill" if body.get("continue_final_message") else "prefix" if "prefix" in messages[-1] else "trailing"
        if messages[-1]["role"] == "assistant" and how in self.continues:
            turns[-1] = ANSWER + contents[-1]
        else:
            turns.append(ANSWER)
        return tokenize("".join(turns), bos=True)

    async def _answer(
        self, request: web.Request, body: dict[str, Any], ids: list[int], *, chat: bool
    ) -> web.StreamResponse:
        self.prompts.append(detokenize(ids))
        rest = self._rest(ids)
        limit = body.get("max_tokens", body.get("max_completion_tokens"))
        tokens = rest[:limit] if len(rest) >= limit else [*rest, CLOSE]
        finish = "stop" if tokens[-1] == CLOSE else "length"
        if not body.get("stream"):
            return web.json_response(self._whole(body, ids, tokens, finish, chat=chat))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        events = self._events(body, ids, tokens, finish, chat=chat)
        await response.write("".join(f"data: {json.dumps(event)}\n\n" for event in events).encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    def _rest(self, ids: list[int]) -> list[int]:
        """What the model has to say after the given ids."""
        given, whole = _after(ids, tokenize(ANSWER)) or _after(ids, tokenize("A:")) or [], tokenize(self.text)
        if whole[: len(given)] != given:
            return tokenize("[what was given is none of my text]")
        return whole[len(given) :]

    def _whole(self, body: dict[str, Any], ids: list[int], tokens: list[int], finish: str, *, chat: bool) -> Any:
        text = detokenize([token for token in tokens if token != CLOSE])
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
        choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        if body.get("return_token_ids") and self.ids:
            choice["token_ids"] = tokens
        usage = {} if self.usage == "never" else {"usage": self._usage(ids, len(tokens))}
        return {"choices": [choice], **usage}

    def _events(
        self, body: dict[str, Any], ids: list[int], tokens: list[int], finish: str, *, chat: bool
    ) -> list[dict[str, Any]]:
        """As vLLM has them: a piece for each token, without text while a character is not whole."""
        events: list[dict[str, Any]] = []
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        if chat:
            events.append({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        for rank, token in enumerate(tokens):
            text = "" if token == CLOSE else decoder.decode(bytes([token]))
            last = rank == len(tokens) - 1
            choice: dict[str, Any] = {"index": 0, "finish_reason": finish if last else None}
            choice |= {"delta": {"content": text}} if chat else {"text": text}
            if body.get("return_token_ids") and self.ids:
                choice["token_ids"] = [token]
            event: dict[str, Any] = {"choices": [choice]}
            if self.usage == "always":
                event["usage"] = self._usage(ids, rank + (token != CLOSE))
            events.append(event)
        if self.usage == "end" and body.get("stream_options", {}).get("include_usage"):
            events.append({"choices": [], "usage": self._usage(ids, len([t for t in tokens if t != CLOSE]))})
        return events

    def _usage(self, ids: list[int], completion: int) -> dict[str, int]:
        return {"prompt_tokens": len(ids), "completion_tokens": completion, "total_tokens": len(ids) + completion}


def _after(ids: list[int], mark: list[int]) -> list[int]:
    """The ids after the last ``mark``."""
    starts = [at for at in range(len(ids)) if ids[at : at + len(mark)] == mark]
    return ids[starts[-1] + len(mark) :] if starts else []
