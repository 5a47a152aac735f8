"""Recorded streams, played again with their own timing."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from actors.engines.base import EngineInfo
from serve_app.core.errors import EndpointUnavailable
from serve_app.core.model import FinishReason, GenerationRequest, Receipt, StreamItem, TokenChunk
from serve_app.engine_settings import ReplayEngineSettings


@dataclass(frozen=True, slots=True)
class Recording:
    """``ids[i]`` came ``offsets[i]`` seconds after ``ids[0]``, which came ``ttft`` seconds after the request."""

    ttft: float
    offsets: tuple[float, ...]
    ids: tuple[int, ...]


class ReplayEngine:
    """A prompt always meets the same recording. Ids number the distinct token strings of the file.

    It cannot react to what it did not record: handed a stream at token n, it goes on with the recording's token n.
    """

    def __init__(self, settings: ReplayEngineSettings) -> None:
        self._path = Path(settings.path).expanduser()
        self._settings = settings
        self._texts: tuple[str, ...] = ()
        self._recordings: tuple[Recording, ...] = ()
        self._vocabulary: str | None = None

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(
            model=f"replay of {self._path.name}",
            context_length=self._settings.context_length,
            vocabulary=self._vocabulary,
        )

    async def start(self) -> None:
        """Raises ``EndpointUnavailable`` naming the file, and the line and what is wrong with it."""
        path = self._path
        try:
            lines = (await asyncio.to_thread(path.read_text, "utf-8")).splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise EndpointUnavailable(f"cannot read the recording {path}: {error}") from None
        rows = [_row(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
        if not rows:
            raise EndpointUnavailable(f"{path} holds no recording")
        self._texts = tuple(sorted({token for _, _, tokens in rows for token in tokens}))
        numbers = {text: number for number, text in enumerate(self._texts)}
        self._recordings = tuple(
            Recording(ttft, tuple(accumulate(gaps, initial=0.0)), tuple(numbers[token] for token in tokens))
            for ttft, gaps, tokens in rows
        )
        digest = hashlib.blake2b("\0".join(self._texts).encode(), digest_size=8).hexdigest()
        self._vocabulary = f"replay:{digest}"

    async def close(self) -> None:
        """Nothing to release."""

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[StreamItem, None]:
        loop = asyncio.get_running_loop()
        due = loop.time()
        recording = self._recording_for(request)
        yield Receipt(prompt_tokens=None)

        first = min(request.handoff.next_index if request.handoff else 0, len(recording.ids))
        last = min(len(recording.ids), first + request.sampling.max_tokens)
        due += recording.ttft
        for index in range(first, last):
            if index > first:
                due = max(due + recording.offsets[index] - recording.offsets[index - 1], loop.time())
            await asyncio.sleep(due - loop.time())
            token = recording.ids[index]
            finish = None
            if index == last - 1:
                finish = FinishReason.STOP if last == len(recording.ids) else FinishReason.LENGTH
            yield TokenChunk(index, self._texts[token], (token,), finish=finish)
        if first == last:
            await asyncio.sleep(due - loop.time())
            next_index = request.handoff.next_index if request.handoff else 0
            yield TokenChunk(next_index, "", count=0, finish=FinishReason.STOP)

    def _recording_for(self, request: GenerationRequest) -> Recording:
        digest = hashlib.blake2b(repr(request.prompt).encode("utf-8", "replace"), digest_size=8).digest()
        return self._recordings[int.from_bytes(digest, "big") % len(self._recordings)]


def _row(path: Path, number: int, line: str) -> tuple[float, list[float], list[str]]:
    """One line's ``ttft``, ``gaps`` and ``tokens``."""
    try:
        row = json.loads(line)
        ttft = _seconds(row["ttft"])
        gaps = [_seconds(gap) for gap in row["gaps"]]
        tokens = row["tokens"]
    except (ValueError, KeyError, TypeError) as error:
        raise EndpointUnavailable(f"{path} line {number}: {type(error).__name__}: {error}") from None
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) and token for token in tokens):
        raise EndpointUnavailable(f"{path} line {number}: tokens must be a list of non-empty strings")
    if len(gaps) != len(tokens) - 1:
        raise EndpointUnavailable(f"{path} line {number}: {len(tokens)} tokens need {len(tokens) - 1} gaps")
    return ttft, gaps, tokens


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 86_400:
        raise ValueError("not a number of seconds")
    return float(value)
