from __future__ import annotations

import pytest

from serve_app.core.estimate import MESSAGE_BYTES, PromptEstimator, prompt_bytes
from serve_app.core.model import ChatPrompt, Message, Prompt, TextPrompt, TokenPrompt


def test_four_bytes_a_token_before_anything_is_known() -> None:
    assert PromptEstimator().estimate(TextPrompt("x" * 400)) == 100


def test_ids_are_exact() -> None:
    assert PromptEstimator().estimate(TokenPrompt((5, 6, 7))) == 3


@pytest.mark.parametrize("prompt", [TextPrompt(""), TokenPrompt(()), TextPrompt("a")])
def test_never_less_than_one_token(prompt: Prompt) -> None:
    assert PromptEstimator().estimate(prompt) == 1


def test_bytes_not_characters_and_room_for_the_template() -> None:
    assert prompt_bytes(TextPrompt("漢é")) == 5
    prompt = ChatPrompt((Message("system", "ab"), Message("user", "é")), prefix="xyz")
    assert prompt_bytes(prompt) == 2 + 2 + 3 + 3 * MESSAGE_BYTES


def test_it_learns_from_reported_counts() -> None:
    estimator = PromptEstimator()
    for _ in range(3000):
        estimator.learn(TextPrompt("x" * 200), 100)
    assert estimator.estimate(TextPrompt("x" * 400)) == pytest.approx(200, abs=2)


def test_it_follows_a_change_of_language() -> None:
    estimator = PromptEstimator()
    for tokens in (50, 200):
        for _ in range(6000):
            estimator.learn(TextPrompt("x" * 200), tokens)
        assert estimator.estimate(TextPrompt("x" * 200)) == pytest.approx(tokens, rel=0.02)


@pytest.mark.parametrize(("prompt", "tokens"), [(TextPrompt("x" * 4000), 0), (TokenPrompt((1,) * 500), 500)])
def test_what_teaches_nothing_changes_nothing(prompt: Prompt, tokens: int) -> None:
    estimator = PromptEstimator()
    estimator.learn(prompt, tokens)
    assert estimator.estimate(TextPrompt("x" * 400)) == 100
