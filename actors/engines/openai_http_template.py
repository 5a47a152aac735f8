"""A chat template of the operator's, for servers that are given raw prompts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from jinja2 import TemplateError

from actors.engines.chat_template import ChatTemplate, ControlGuard
from serve_app.core.errors import EndpointUnavailable
from serve_app.core.model import ChatPrompt

#: What control tokens look like: <|im_end|>, </s>, <start_of_turn>, [INST].
_CONTROL: Final = re.compile(r"""<[^<>\s{}%'"]{1,40}>|\[/?[A-Z_]{2,40}\]""")

_BREAK: Final = "\N{ZERO WIDTH SPACE}"
"""Put inside a control token's text that somebody wrote: a server takes the bare text for the token itself."""


class PromptTemplate:
    """``eos``: text of the token that the template calls eos_token.

    BOS is left out of the prompt: servers put it before a raw prompt themselves.
    """

    def __init__(self, source: str, eos: str = "") -> None:
        if "eos_token" in source and not eos:
            raise EndpointUnavailable("engine.eos_token: the chat template asks for it; set it to the token's text")
        self._guard = ControlGuard({*_CONTROL.findall(source), eos})
        try:
            self._template = ChatTemplate(source, bos="", eos=eos, guard=self._guard)
        except TemplateError as error:
            line = getattr(error, "lineno", None)
            where = f" (line {line})" if line else ""
            raise EndpointUnavailable(f"engine.chat_template: not a sound Jinja template{where}") from None

    @classmethod
    def load(cls, path: str, eos: str) -> PromptTemplate:
        """Raises ``EndpointUnavailable`` with the remedy."""
        try:
            source = Path(path).expanduser().read_text("utf-8")
        except (OSError, RuntimeError, UnicodeDecodeError):
            raise EndpointUnavailable(
                "engine.chat_template: no readable UTF-8 file where the replica runs; give a Jinja file's path"
            ) from None
        return cls(source, eos)

    def render(self, prompt: ChatPrompt, continuation: str = "") -> str:
        """Up to the answer, its given beginning and a ``continuation`` of it, with no mark of an end behind them."""
        segments = self._template.render(prompt, continuation)
        return "".join(s.text if s.controls else self._guard.protect(s.text, _BREAK) for s in segments)
