"""How many tokens a prompt has, as the server's own accounts of earlier ones suggest."""

from __future__ import annotations

from typing import Final

from serve_app.core.model import ChatPrompt, Prompt, TextPrompt, TokenPrompt

_SMOOTHING: Final = 0.2


class PromptSizes:
    """A server that is given text counts a prompt only after the fact; until the first account nothing is known."""

    def __init__(self) -> None:
        self._tokens_per_byte: float | None = None

    def estimate(self, prompt: Prompt) -> int | None:
        return None if self._tokens_per_byte is None else round(self._tokens_per_byte * prompt_bytes(prompt))

    def learn(self, prompt: Prompt, continuation: str, tokens: int) -> None:
        """``tokens``: the server's count of the prompt and a ``continuation`` of the answer."""
        size = prompt_bytes(prompt) + _size(continuation)
        if size == 0:
            return
        seen = tokens / size
        known = seen if self._tokens_per_byte is None else self._tokens_per_byte
        self._tokens_per_byte = known + _SMOOTHING * (seen - known)


def prompt_bytes(prompt: Prompt) -> int:
    match prompt:
        case ChatPrompt(messages, prefix):
            return sum(_size(message.role) + _size(message.content) for message in messages) + _size(prefix)
        case TextPrompt(text):
            return _size(text)
        case TokenPrompt(token_ids):
            return len(token_ids)


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
