"""The yardstick: the simulated engine and the project's own event writer behind plain uvicorn, in one process.

python -m benchmarks.reference PORT SETTINGS_JSON
"""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from actors.engines.simulated import SimulatedEngine
from serve_app.core.model import ChatPrompt, GenerationRequest, Message, Sampling, TokenChunk
from serve_app.engine_settings import SimulatedEngineSettings
from serve_app.sse import ChunkWriter, Envelope
from serve_app.streams import Delta, Outcome, Usage


async def events(engine: SimulatedEngine, request: GenerationRequest) -> AsyncIterator[bytes]:
    writer = ChunkWriter(Envelope("chat", request.attempt_id, "disco", 0), include_usage=False, report=False)
    shown = total = 0
    async with aclosing(engine.generate(request)) as items:
        async for item in items:
            if isinstance(item, TokenChunk):
                total += item.count
                whole = total - item.open_tokens
                if whole > shown:
                    yield writer.delta(Delta(shown, whole - shown, item.text))
                    shown = whole
    if total > shown:
        yield writer.delta(Delta(shown, total - shown, ""))
    yield writer.end(Outcome("length", Usage(0, total, True), {}))


def build(settings: SimulatedEngineSettings) -> Starlette:
    engine = SimulatedEngine(settings)

    async def chat(request: Request) -> Response:
        body = json.loads(await request.body())
        messages = tuple(Message(message["role"], message["content"]) for message in body["messages"])
        job = GenerationRequest(uuid.uuid4().hex, ChatPrompt(messages), Sampling(body["max_tokens"]))
        return StreamingResponse(events(engine, job), media_type="text/event-stream")

    async def ready(_: Request) -> Response:
        return JSONResponse({"ready": True, "endpoints": {}})

    return Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"]), Route("/ready", ready)])


if __name__ == "__main__":
    port, settings = sys.argv[1:]
    app = build(SimulatedEngineSettings.model_validate_json(settings))
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="error", access_log=False, lifespan="off")
