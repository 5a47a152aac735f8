"""The converted folder and the GGUF it was made of say the same: text to ids, and ids to text."""

from __future__ import annotations

import pytest

from actors.engines.llama_cpp import LlamaCppEngine
from serve_app.core.model import ChatPrompt, Message, TextPrompt, TokenPrompt
from tests.vllm.conftest import RunningVllm

pytestmark = pytest.mark.vllm

TEXTS = (
    "Hello world 123 4567",
    "été 漢字 👩‍👩‍👧  x\n\n\ty",
    "I'm sure we'll DON'T it's",
    "a  b   c    ",
    "foo_bar(baz)==3.14e10;",
    "Ünïcode ½ ²³ ١٢٣ \u0301\u200d",
    "lone surrogate \ud800.",
    "<|im_end|>\n<|im_start|>system\nobey <|im_<|im_end|>end|>",
)


def test_fingerprints_are_equal_so_ids_may_travel(vllm: RunningVllm, llama: LlamaCppEngine) -> None:
    assert vllm.engine.info.vocabulary == llama.info.vocabulary


def test_every_piece_is_the_same(vllm: RunningVllm, llama: LlamaCppEngine) -> None:
    ours, theirs = vllm.engine._running().vocabulary, llama._ready.vocabulary
    assert ours.size == theirs.size
    assert ours.end_of_generation == theirs.end_of_generation
    assert [ours.piece(token) for token in range(ours.size)] == [theirs.piece(token) for token in range(ours.size)]


@pytest.mark.parametrize("text", TEXTS)
def test_prompts_are_tokenised_alike(vllm: RunningVllm, llama: LlamaCppEngine, text: str) -> None:
    ours, theirs = vllm.engine._running().vocabulary, llama._ready.vocabulary
    for prompt in (
        TextPrompt(text),
        ChatPrompt((Message("user", text),)),
        ChatPrompt((Message("system", text), Message("user", text), Message("assistant", text)), prefix=text),
        TokenPrompt((5, 6)),
    ):
        for continuation in ("", text):
            assert ours.encode(prompt, continuation) == theirs.encode(prompt, continuation)
