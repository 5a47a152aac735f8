"""Whatever JSON arrives, the answer is a 200 or an error object below 500, and says nothing of what was sent."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.ingress import build_http_app
from tests.http.fakes import CANARY, CHAT, COMPLETIONS, body, make_surface
from tests.support.effort import examples

FIELDS = [
    "model", "messages", "prompt", "max_tokens", "max_completion_tokens", "temperature", "top_p", "seed", "stop", "n",
    "stream", "stream_options", "disco", "user", "tools", "logprobs", "top_logprobs", "logit_bias", "suffix", "echo",
    "best_of", "presence_penalty", "frequency_penalty", "response_format", "continue_final_message", "metadata",
    "add_generation_prompt", "modalities", "unknown",
]  # fmt: skip
WORDS = st.sampled_from(
    ["role", "content", "type", "text", "user", "assistant", "report", "pin", "consumption_rate", "include_usage",
     "image_url", "tool", "device_only", CANARY]
) | st.text(max_size=5)  # fmt: skip
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | WORDS
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3), max_leaves=8
)


def ask(path: str, content: bytes) -> httpx.Response:
    async def scenario() -> httpx.Response:
        transport = httpx.ASGITransport(build_http_app(make_surface()), raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post(path, content=content)

    return asyncio.run(scenario())


def check(response: httpx.Response) -> None:
    assert response.status_code in {200, 400, 404, 413}
    if response.status_code != 200:
        error: dict[str, Any] = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code", "retryable"}
        assert error["message"]
        assert CANARY not in error["message"].replace(f"disco.{CANARY}", "")


@settings(max_examples=examples(300, 3000), deadline=None)
@given(st.sampled_from([CHAT, COMPLETIONS]), st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4))
def test_any_value_in_any_field(path: str, fields: dict[str, Any]) -> None:
    check(ask(path, json.dumps(body(path, **fields)).encode()))


@settings(max_examples=examples(100, 1500), deadline=None)
@given(st.sampled_from([CHAT, COMPLETIONS]), st.binary(max_size=40) | VALUES.map(lambda v: json.dumps(v).encode()))
def test_any_body(path: str, content: bytes) -> None:
    check(ask(path, content))
