"""What one device does with several streams, with a prefix it has seen, with a parked prefill and with an abort.

    python -m benchmarks.device [--streams 8] [--tokens 48] [--rounds 5]

llama.cpp with the default model, in this process. Each figure stands beside its counterpart in the same run: several
streams at once beside one alone and beside a queue, a cached prefix beside a cold one, a handover after parking beside
one without. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from array import array
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from itertools import takewhile
from statistics import median
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from actors.engines.llama_cpp import LlamaCppEngine
from actors.engines.llama_decoder import Job, Output, Token
from actors.engines.models import fetch
from serve_app.core.model import (
    ChatPrompt,
    GenerationRequest,
    Handoff,
    Message,
    Prompt,
    Sampling,
    TextPrompt,
    TokenChunk,
)
from serve_app.engine_settings import LlamaCppEngineSettings

MODEL: Final = "smollm2-135m-instruct"
CONTEXT: Final = 2048
TOPICS: Final = ("the sea", "a bakery", "winter", "two robots", "a lost key", "chess", "an old map", "the night train")
#: Tokens of the prompt that is continued, and of the one whose prefill is broken off.
PREFIX, LONG = 512, 1500
#: Seconds. A chunk of a prompt takes this long on no machine that is worth measuring.
LONGEST_EVALUATION: Final = 3.0
#: Tokens that the other endpoint wrote before a parked prefill is taken up.
ACCEPTED: Final = 24


@dataclass(frozen=True, slots=True)
class Answer:
    """``ttft``: seconds until the first token."""

    ids: tuple[int, ...]
    texts: tuple[str, ...]
    ttft: float


def story(topic: str) -> ChatPrompt:
    return ChatPrompt((Message("user", f"Tell me a long story about {topic}."),))


def words(tokens: int, salt: int) -> TextPrompt:
    """About as many tokens: each of these words is one."""
    rng = np.random.default_rng(salt)
    known = np.array(["time", "house", "water", "light", "story", "people", "world", "night", "music", "river"])
    return TextPrompt(" ".join(rng.choice(known, tokens).tolist()))


def ask(prompt: Prompt, tokens: int, handoff: Handoff | None = None, park: float = 0.0) -> GenerationRequest:
    return GenerationRequest("attempt", prompt, Sampling(tokens, temperature=0.0), handoff, park=park)


def after(answer: Answer, cut: int) -> Handoff:
    return Handoff("".join(answer.texts[:cut]), cut, array("i", answer.ids[:cut]).tobytes())


@asynccontextmanager
async def device(slots: int, n_batch: int = 64) -> AsyncIterator[LlamaCppEngine]:
    """On all cores but one, as the service runs a device that is alone on its machine."""
    settings = LlamaCppEngineSettings(model=MODEL, context_length=CONTEXT, n_batch=n_batch)
    engine = LlamaCppEngine(settings, slots, max(1, (os.cpu_count() or 2) - 1))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


async def read(engine: LlamaCppEngine, request: GenerationRequest) -> Answer:
    began, ttft = time.perf_counter(), float("nan")
    ids: list[int] = []
    texts: list[str] = []
    async for item in engine.generate(request):
        if isinstance(item, TokenChunk) and item.count:
            ttft = time.perf_counter() - began if not ids else ttft
            ids += item.token_ids
            texts.append(item.text)
    return Answer(tuple(ids), tuple(texts), ttft)


# --- several streams ------------------------------------------------------------------------------------------------


async def together(engine: LlamaCppEngine, prompts: Iterable[Prompt], tokens: int) -> tuple[list[Answer], float]:
    """All at once; and their tokens per second."""
    began = time.perf_counter()
    answers = await asyncio.gather(*(read(engine, ask(prompt, tokens)) for prompt in prompts))
    return answers, sum(len(answer.ids) for answer in answers) / (time.perf_counter() - began)


class GapSampler:
    """Greedy; remembers by how much the likeliest token led the second."""

    gap = 0.0

    def choose(self, logits: NDArray[np.float32]) -> int:
        second, first = np.partition(logits, -2)[-2:]
        self.gap = float(first - second)
        return int(np.argmax(logits))


async def lead_at(engine: LlamaCppEngine, prompt: Prompt, ids: Sequence[int]) -> float:
    """Logits between the two likeliest tokens after ``ids``."""
    assert isinstance(prompt, ChatPrompt)
    loaded, loop, done, sampler = engine._ready, asyncio.get_running_loop(), asyncio.Event(), GapSampler()

    def emit(output: Output) -> None:
        if isinstance(output, Token) and output.finish is not None:
            loop.call_soon_threadsafe(done.set)

    whole = [*loaded.vocabulary.encode(prompt), *ids]
    loaded.decoder.submit(Job(whole, sampler, 1, False, 0.0, emit))  # type: ignore[arg-type]
    await done.wait()
    return sampler.gap


async def streams(count: int, tokens: int) -> dict[str, Any]:
    prompts = [story(f"{TOPICS[i % len(TOPICS)]}, part {i // len(TOPICS) + 1}") for i in range(count)]
    async with device(1) as queue:
        serial = [await read(queue, ask(prompt, tokens)) for prompt in prompts]
        queued, queue_rate = await together(queue, prompts, tokens)
    async with device(count) as batching:
        _, alone_rate = await together(batching, prompts[:1], tokens)
        batched, batch_rate = await together(batching, prompts, tokens)
    gaps = []
    async with device(1, n_batch=1) as judge:
        for prompt, one, other in zip(prompts, serial, batched, strict=True):
            if one.ids != other.ids:
                same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one.ids, other.ids, strict=False)))
                gaps.append(await lead_at(judge, prompt, one.ids[:same]))
    return {
        "streams": count,
        "alone_tokens_per_s": alone_rate,
        "queued_tokens_per_s": queue_rate,
        "batched_tokens_per_s": batch_rate,
        "queued_equal_serial": sum(one.ids == other.ids for one, other in zip(serial, queued, strict=True)),
        "batched_same_first_token": sum(one.ids[0] == other.ids[0] for one, other in zip(serial, batched, strict=True)),
        "batched_equal_serial": count - len(gaps),
        "largest_lead_where_they_part_logits": max(gaps, default=0.0),
    }


# --- what was computed before ---------------------------------------------------------------------------------------


async def prefix(rounds: int) -> dict[str, float]:
    """A continuation on the device that wrote the beginning, and on one that never saw it."""
    cached, cold = [], []
    async with device(2) as engine, device(2) as stranger:
        for salt in range(rounds):
            prompt = words(PREFIX, salt)
            begun = await read(engine, ask(prompt, ACCEPTED))
            request = ask(prompt, 2 * ACCEPTED, after(begun, len(begun.ids)))
            cached.append((await read(engine, request)).ttft)
            cold.append((await read(stranger, request)).ttft)
    return {
        "prompt_tokens": PREFIX,
        "cold_ttft_s": median(cold),
        "cached_ttft_s": median(cached),
        "cached_share": median(cached) / median(cold),
    }


async def parking(rounds: int) -> dict[str, float]:
    """A race that the server wins while the device prefills, and the later move to the device, t_m."""
    found: dict[float, list[float]] = {30.0: [], 0.0: []}
    async with device(2) as server:
        for salt in range(rounds):
            prompt = words(PREFIX, salt)
            begun = await read(server, ask(prompt, ACCEPTED))
            for park, seconds in found.items():
                async with device(2) as loser:
                    await _lose(loser, ask(prompt, ACCEPTED, park=park))
                    await _idle(loser)
                    seconds.append((await read(loser, ask(prompt, 2 * ACCEPTED, after(begun, len(begun.ids))))).ttft)
    return {"prompt_tokens": PREFIX, "parked_t_m_s": median(found[30.0]), "unparked_t_m_s": median(found[0.0])}


async def _lose(engine: LlamaCppEngine, request: GenerationRequest) -> None:
    async with aclosing(engine.generate(request)) as leg:
        await anext(leg)


async def _idle(engine: LlamaCppEngine) -> None:
    """Until nothing is evaluated any more."""
    before = -1
    while before != engine.evaluated:
        before = engine.evaluated
        await asyncio.sleep(LONGEST_EVALUATION)


# --- aborts ---------------------------------------------------------------------------------------------------------


async def aborts() -> dict[str, int]:
    """Tokens that are evaluated after the reader has gone."""
    async with device(1) as engine:
        async with aclosing(engine.generate(ask(words(LONG, 0), 8))) as leg:
            await anext(leg)
        at = engine.evaluated
        await _idle(engine)
        prefilling = engine.evaluated - at
        async with aclosing(engine.generate(ask(story("the sea"), 400))) as leg:
            async for item in leg:
                if isinstance(item, TokenChunk) and item.index == 8:
                    break
        at = engine.evaluated
        await _idle(engine)
        decoding = engine.evaluated - at
        async with aclosing(engine.generate(ask(story("winter"), 32))) as busy:
            await anext(busy)
            waiting = asyncio.create_task(read(engine, ask(words(LONG, 1), 8)))
            await anext(busy)
            waiting.cancel()
            await asyncio.wait({waiting})
            async for _ in busy:
                pass
        # The story's prompt and answer, and nothing of the other's prompt.
        await _idle(engine)
        queued = engine.evaluated - at - decoding
    return {
        "chunk_tokens": 64,
        "after_abort_in_prefill_tokens": prefilling,
        "after_abort_in_decode_tokens": decoding,
        "busy_with_one_aborted_in_queue_tokens": queued,
    }


def shown(figures: dict[str, dict[str, Any]]) -> Table:
    table = Table("", "figure", "", title="one device: llama.cpp, SmolLM2-135M")
    for name, part in figures.items():
        for row, (figure, value) in enumerate(part.items()):
            number = f"{value:.3f}" if isinstance(value, float) else str(value)
            table.add_row(name if row == 0 else "", figure.replace("_", " "), number)
    return table


async def measure(count: int, tokens: int, rounds: int) -> dict[str, dict[str, Any]]:
    return {
        "several streams": await streams(count, tokens),
        "prefix": await prefix(rounds),
        "parking": await parking(rounds),
        "abort": await aborts(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    fetch(MODEL, print)
    load = os.getloadavg()[0]
    figures = asyncio.run(measure(options.streams, options.tokens, options.rounds))
    Console().print(shown(figures))
    print(json.dumps({"load_before": round(load, 2)} | figures))


if __name__ == "__main__":
    main()
