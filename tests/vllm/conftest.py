"""One real vLLM on this machine's CPU for all the tests that only read streams from it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from actors.engines.convert import convert
from actors.engines.llama_cpp import LlamaCppEngine
from actors.engines.models import fetch
from actors.engines.vllm_engine import VllmEngine
from actors.engines.vllm_runtime import load_runtime
from serve_app.engine_settings import LlamaCppEngineSettings, VllmEngineSettings

MODEL = "smollm2-135m-instruct"
CONTEXT = 2048
#: Tokens per step: what an abort may still have to wait for.
CHUNK = 256
SLOTS = 2

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EngineStep:
    """What vLLM's scheduler said after one of its steps."""

    running: int
    waiting: int


@dataclass(frozen=True, slots=True)
class RunningVllm:
    """The engine belongs to the runner's event loop. ``traces``: ids of the traces that vLLM's spans belong to."""

    runner: asyncio.Runner
    engine: VllmEngine
    steps: list[EngineStep]
    traces: list[bytes]

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(coro)


@pytest.fixture(scope="session")
def folder() -> Path:
    """The default model as a folder, converted once per cache: about a minute."""
    return convert(MODEL, None, print)


@contextmanager
def collector(traces: list[bytes]) -> Iterator[str]:
    """The address of an OpenTelemetry collector that notes to which trace each span belongs."""
    import grpc
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as messages
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as service

    class Notes(service.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the protocol's name
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    traces.extend(span.trace_id for span in scope.spans)
            return messages.ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    service.add_TraceServiceServicer_to_server(Notes(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"http://127.0.0.1:{port}"
    server.stop(grace=None).wait()


@pytest.fixture(scope="session")
def vllm(folder: Path) -> Iterator[RunningVllm]:
    from vllm.v1.metrics.loggers import StatLoggerBase

    steps: list[EngineStep] = []

    class Recorder(StatLoggerBase):
        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            """Nothing to prepare."""

        def record(self, scheduler_stats: Any, iteration_stats: Any, **_: Any) -> None:
            if scheduler_stats is not None:
                steps.append(EngineStep(scheduler_stats.num_running_reqs, scheduler_stats.num_waiting_reqs))

        def log_engine_initialized(self) -> None:
            """Nobody is interested."""

    traces: list[bytes] = []
    with collector(traces) as address, pytest.MonkeyPatch.context() as environment, asyncio.Runner() as runner:
        environment.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        settings = VllmEngineSettings(
            model=str(folder),
            context_length=CONTEXT,
            dtype="float32",
            eager=True,
            kv_cache_gib=0.25,
            prefill_chunk=CHUNK,
            otlp_traces=address,
        )
        engine = VllmEngine(settings, SLOTS, 1, load=partial(load_runtime, stat_loggers=[Recorder]))
        runner.run(engine.start())
        yield RunningVllm(runner, engine, steps, traces)
        runner.run(engine.close())


@pytest.fixture(scope="session")
def llama() -> Iterator[LlamaCppEngine]:
    fetch(MODEL, print)
    engine = LlamaCppEngine(LlamaCppEngineSettings(model=MODEL, context_length=CONTEXT), SLOTS, 1)
    asyncio.run(engine.start())
    yield engine
    asyncio.run(engine.close())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("vllm"):
            # vLLM's and torch's own deprecations are not this project's to fix; a start takes a minute and more.
            item.add_marker(pytest.mark.filterwarnings("ignore"))
            item.add_marker(pytest.mark.timeout(600))
