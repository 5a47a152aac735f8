"""How many tokens a prompt has, before anybody tokenised it."""

from __future__ import annotations

from serve_app.core.model import ChatPrompt, Prompt, TextPrompt, TokenPrompt

#: Bytes that a chat template adds around one message, roughly.
MESSAGE_BYTES = 24
_PRIOR_BYTES_PER_TOKEN = 4.0
_PRIOR_WEIGHT = 200.0
_FORGET = 0.999


class PromptEstimator:
    """Bytes per token of one served model, learnt from the counts that endpoints report."""

    def __init__(self) -> None:
        self._bytes = _PRIOR_BYTES_PER_TOKEN * _PRIOR_WEIGHT
        self._tokens = _PRIOR_WEIGHT

    def estimate(self, prompt: Prompt) -> int:
        """Tokens of ``prompt``, at least 1; exact where the caller gave token ids."""
        if isinstance(prompt, TokenPrompt):
            return max(1, len(prompt.token_ids))
        return max(1, round(prompt_bytes(prompt) * self._tokens / self._bytes))

    def learn(self, prompt: Prompt, tokens: int) -> None:
        if tokens > 0 and not isinstance(prompt, TokenPrompt):
            self._bytes = _FORGET * self._bytes + prompt_bytes(prompt)
            self._tokens = _FORGET * self._tokens + tokens


def prompt_bytes(prompt: ChatPrompt | TextPrompt) -> int:
    """UTF-8 bytes of the text, with an allowance for the template."""
    if isinstance(prompt, TextPrompt):
        return len(prompt.text.encode())
    contents = sum(len(m.content.encode()) + MESSAGE_BYTES for m in prompt.messages)
    return contents + len(prompt.prefix.encode()) + MESSAGE_BYTES
