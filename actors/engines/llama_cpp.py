"""A GGUF file run by llama.cpp inside the actor."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import os
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.engines.base import EngineInfo
from actors.engines.detokenizer import Detokenizer
from actors.engines.gguf import beyond_training
from actors.engines.llama_decoder import Decoder, Job, Output, Started
from actors.engines.llama_sampler import Sampler
from actors.engines.llama_vocab import Vocabulary
from actors.engines.models import resolve
from actors.engines.prompt_ids import leg_input
from serve_app.core.errors import EndpointUnavailable
from serve_app.core.model import FinishReason, GenerationRequest, Receipt, StreamItem, TokenChunk
from serve_app.engine_settings import LlamaCppEngineSettings
from serve_app.extras import installing


@dataclass(frozen=True, slots=True)
class _Loaded:
    api: Any
    model: Any
    vocabulary: Vocabulary
    decoder: Decoder
    info: EngineInfo


class LlamaCppEngine:
    """One context with a KV stream for each of ``slots`` sequences; ``threads`` cores compute.

    A stream's KV stays until another one needs the sequence, and a handoff finds it again; a first leg never does, so
    that neither its latency nor its rounding depends on what ran before. With ``n_batch`` 1 every evaluation has one
    token: the same ids give the same logits whether they were prompt or answer, alone or among other streams.
    """

    def __init__(self, settings: LlamaCppEngineSettings, slots: int, threads: int) -> None:
        self._settings = settings
        self._slots = slots
        self._threads = threads
        self._loaded: _Loaded | None = None

    @property
    def info(self) -> EngineInfo:
        return self._ready.info

    @property
    def evaluated(self) -> int:
        """Tokens evaluated since the start, prompts and answers."""
        return self._ready.decoder.evaluated

    @property
    def _ready(self) -> _Loaded:
        if self._loaded is None:
            raise EndpointUnavailable("the model is not loaded")
        return self._loaded

    async def start(self) -> None:
        self._loaded = await asyncio.to_thread(self._load)

    async def close(self) -> None:
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            await asyncio.to_thread(loaded.decoder.close)
            await asyncio.to_thread(loaded.vocabulary.close)
            loaded.api.llama_model_free(loaded.model)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[StreamItem, None]:
        loaded = self._ready
        handoff = request.handoff
        # A long prompt takes milliseconds to tokenise, and other streams share this loop.
        given = await asyncio.to_thread(leg_input, loaded.vocabulary, request, loaded.info.context_length)
        loop = asyncio.get_running_loop()
        outputs: asyncio.Queue[Output] = asyncio.Queue()

        def emit(output: Output) -> None:
            # A loop that has gone has no reader left to tell.
            if not loop.is_closed():
                loop.call_soon_threadsafe(outputs.put_nowait, output)

        job = Job(
            ids=given.ids,
            sampler=Sampler(request.sampling, given.accepted),
            max_tokens=request.sampling.max_tokens,
            may_reuse=handoff is not None,
            park=request.park,
            emit=emit,
        )
        detokenizer = Detokenizer(loaded.vocabulary, given.primer)
        index = 0 if handoff is None else handoff.next_index
        finish: FinishReason | None = None
        loaded.decoder.submit(job)
        try:
            while finish is None:
                output = await outputs.get()
                if isinstance(output, EndpointUnavailable):
                    raise output
                if isinstance(output, Started):
                    yield Receipt(given.prompt_tokens, queued=output.queued, reused=output.reused)
                    continue
                finish = output.finish
                loaded.decoder.take(job)
                if output.id is None:
                    yield TokenChunk(index, "", count=0, open_tokens=detokenizer.open_tokens, finish=finish)
                    continue
                text = detokenizer.push(output.id)
                yield TokenChunk(index, text, (output.id,), open_tokens=detokenizer.open_tokens, finish=finish)
                index += 1
        finally:
            if finish is None:
                loaded.decoder.abort(job)

    def _load(self) -> _Loaded:
        try:
            path = resolve(self._settings.model)
        except FileNotFoundError as error:
            raise EndpointUnavailable(str(error)) from None
        api = _runtime()
        model_params = api.llama_model_default_params()
        model_params.n_gpu_layers = 0
        model = api.llama_model_load_from_file(str(path).encode(), model_params)
        if not model:
            raise EndpointUnavailable(f"engine.model: llama.cpp cannot load {path.name}; is it a whole GGUF file?")
        context_length = self._settings.context_length
        if problem := beyond_training(context_length, api.llama_model_n_ctx_train(model)):
            api.llama_model_free(model)
            raise EndpointUnavailable(problem)
        context = api.llama_init_from_model(model, self._context_params(api, context_length))
        if not context:
            api.llama_model_free(model)
            raise EndpointUnavailable(
                f"llama.cpp cannot allocate {self._slots} contexts of {context_length} tokens; "
                "lower slots or engine.context_length"
            )
        vocabulary = Vocabulary(api, model)
        decoder = Decoder(
            api, context, self._slots, self._settings.n_batch, context_length, vocabulary.end_of_generation
        )
        decoder.start()
        info = EngineInfo(
            model=_name(path), context_length=context_length, vocabulary=vocabulary.fingerprint, can_park=True
        )
        return _Loaded(api, model, vocabulary, decoder, info)

    def _context_params(self, api: Any, context_length: int) -> Any:
        params = api.llama_context_default_params()
        params.n_ctx = context_length * self._slots
        params.n_seq_max = self._slots
        params.kv_unified = False
        params.n_batch = params.n_ubatch = max(self._settings.n_batch, self._slots)
        params.n_outputs_max = self._slots
        params.n_threads = params.n_threads_batch = self._threads
        params.offload_kqv = False
        params.op_offload = False
        params.no_perf = True
        return params


def _name(path: Path) -> str:
    return path.stem


@functools.cache
def _runtime() -> Any:
    """llama.cpp's C interface, silenced: its log would carry pieces of prompts."""
    try:
        import llama_cpp
        from llama_cpp import _ggml
    except ImportError as error:
        raise EndpointUnavailable(f"llama-cpp-python is not installed; run: {installing('llama')}") from error
    llama_cpp.llama_log_set(_silence(llama_cpp), ctypes.c_void_p(0))
    load_backends(_ggml.libggml, Path(llama_cpp.__file__).parent / "lib")
    llama_cpp.llama_backend_init()
    return llama_cpp


def load_backends(ggml: Any, folder: Path) -> None:
    """Where ggml was built for many processors, its code for each lies in ``folder``: load what this machine can run.

    An ordinary build has its one backend inside and is left alone. Only ``folder`` is looked at; by itself ggml would
    also load what lies in the current directory.
    """
    ggml.ggml_backend_reg_count.restype = ctypes.c_size_t
    if ggml.ggml_backend_reg_count() == 0:
        ggml.ggml_backend_load_all_from_path(ctypes.c_char_p(os.fsencode(folder)))


@functools.cache
def _silence(api: Any) -> Any:
    """llama.cpp keeps only the callback's address, so the cache keeps the callback."""
    return api.llama_log_callback(_ignore)


def _ignore(level: int, text: bytes, data: object) -> None:
    """A log callback that drops its line."""
