"""A model's own chat template, rendered so that nobody's words can pass for the template's control tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from serve_app.core.errors import InvalidRequest
from serve_app.core.model import ChatPrompt

_MARKS: Final = range(0xF0000, 0xFFFFE)
"""Private-use characters: one that no message contains marks where a control token's text was somebody's words."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a rendered prompt. ``controls``: whether text of control tokens in it means those tokens."""

    text: str
    controls: bool


class ControlGuard:
    """Finds the text of control tokens and keeps what people wrote apart from what the template wrote."""

    def __init__(self, controls: Iterable[str]) -> None:
        longest_first = sorted((text for text in controls if len(text) > 1), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def mark_for(self, texts: Iterable[str]) -> str:
        used = set().union(*texts)
        for code in _MARKS:
            if chr(code) not in used:
                return chr(code)
        raise InvalidRequest("the messages use every private-use character of a plane; remove some", "messages")

    def protect(self, text: str, mark: str) -> str:
        """Split every control token's text in ``text`` by ``mark``."""
        if self._pattern is None:
            return text
        # Splitting one may leave another that overlapped it.
        while (broken := self._pattern.sub(lambda match: match[0][:1] + mark + match[0][1:], text)) != text:
            text = broken
        return text

    def segments(self, rendered: str, mark: str) -> list[Segment]:
        """Cut at control tokens, and only around stretches that contain protected text.

        Without any, the whole prompt is one segment, tokenised exactly as llama.cpp itself would.
        """
        if mark not in rendered or self._pattern is None:
            return [Segment(rendered, controls=True)]
        found: list[Segment] = []
        start = 0
        cuts = [span for match in self._pattern.finditer(rendered) for span in match.span()]
        for cut in [*cuts, len(rendered)]:
            piece = rendered[start:cut]
            start = cut
            if mark in piece:
                found.append(Segment(piece.replace(mark, ""), controls=False))
            elif piece and found and found[-1].controls:
                found[-1] = Segment(found[-1].text + piece, controls=True)
            elif piece:
                found.append(Segment(piece, controls=True))
        return found


class ChatTemplate:
    """A Jinja template from a model file, run in a sandbox because model files come from anywhere."""

    def __init__(self, source: str, bos: str, eos: str, guard: ControlGuard) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, autoescape=False, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        # No strftime_now: with a date in it, the two ends of a handoff at midnight would not see the same prompt.
        environment.globals.update(bos_token=bos, eos_token=eos, raise_exception=_refuse, add_generation_prompt=True)
        self._template = environment.from_string(source)
        self._guard = guard

    def render(self, prompt: ChatPrompt, continuation: str = "") -> list[Segment]:
        """The prompt up to the answer, the answer's given beginning and a ``continuation`` of it, verbatim."""
        texts = [prompt.prefix, continuation]
        for message in prompt.messages:
            texts += (message.role, message.content)
        mark = self._guard.mark_for(texts)
        messages = [
            {
                "role": self._guard.protect(message.role, mark),
                "content": self._guard.protect(message.content, mark),
            }
            for message in prompt.messages
        ]
        try:
            rendered = self._template.render(messages=messages)
        except (TemplateError, TypeError, ValueError):
            # The cause may quote the messages.
            raise InvalidRequest(
                "the model's chat template refuses these messages; check the roles and their order", "messages"
            ) from None
        return self._guard.segments(rendered + self._guard.protect(prompt.prefix + continuation, mark), mark)


def _refuse(reason: str) -> NoReturn:
    raise TemplateError(reason)


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
