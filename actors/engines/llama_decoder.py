"""The one thread that owns a llama.cpp context, and what it does there: continuous batching over sequences.

A sequence is one KV stream of the context. It runs a job, prefills for a parked one, or lies idle with the tokens its
KV cache holds, from which a handoff may carry on. Jobs wait in order of arrival for a sequence.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeAlias

import numpy as np

from actors.engines.llama_sampler import Sampler
from serve_app.core.errors import EndpointUnavailable
from serve_app.core.model import FinishReason

_AHEAD: Final = 4
"""Tokens generated beyond what was taken; then the job's sequence waits."""

_PREFILL_BESIDE_DECODE: Final = 8
"""Prompt tokens per evaluation while other streams decode: about the time of four of their tokens on a CPU, where
larger chunks are hardly more efficient."""


@dataclass(frozen=True, slots=True)
class Started:
    """The job has a sequence. ``reused``: tokens found in its KV cache; ``queued``: seconds waited."""

    reused: int
    queued: float


@dataclass(frozen=True, slots=True)
class Token:
    """One token, or none with ``finish`` alone."""

    id: int | None
    finish: FinishReason | None = None


Output: TypeAlias = Started | Token | EndpointUnavailable


@dataclass(slots=True, eq=False)
class Job:
    """One leg. The decode thread writes ``sent``, the reader ``taken``; nobody writes both."""

    ids: Sequence[int]
    sampler: Sampler
    max_tokens: int
    may_reuse: bool
    park: float
    emit: Callable[[Output], None]
    submitted: float = field(default_factory=time.monotonic)
    sent: int = 0
    taken: int = 0


@dataclass(slots=True, eq=False)
class _Slot:
    """``held`` are the tokens in the KV cache, ``todo`` those still to evaluate. ``expires``: end of the parking."""

    number: int
    held: list[int] = field(default_factory=list)
    todo: deque[int] = field(default_factory=deque)
    job: Job | None = None
    expires: float | None = None
    used: float = 0.0

    @property
    def runnable(self) -> bool:
        return bool(self.todo) and (self.job is None or self.job.sent - self.job.taken < _AHEAD)

    @property
    def decoding(self) -> bool:
        return self.job is not None and self.job.sent > 0

    def common_prefix(self, ids: Sequence[int]) -> int:
        length = 0
        for ours, theirs in zip(self.held, ids, strict=False):
            if ours != theirs:
                break
            length += 1
        return length


class Decoder:
    """Commands come in by a queue, outputs leave by each job's ``emit``, called on the decode thread."""

    def __init__(
        self, api: Any, context: Any, slots: int, n_batch: int, context_length: int, end_of_generation: frozenset[int]
    ) -> None:
        self._api = api
        self._context = context
        self._memory = api.llama_get_memory(context)
        self._vocabulary_size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(api.llama_get_model(context)))
        self._n_batch = n_batch
        self._context_length = context_length
        self._end_of_generation = end_of_generation
        self._batch = api.llama_batch_init(n_batch, 0, 1)
        self._slots = deque(_Slot(number) for number in range(slots))
        self._waiting: deque[Job] = deque()
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._open = True
        self._gate = threading.Lock()
        self._closed = False
        self.evaluated = 0
        self._thread = threading.Thread(target=self._run, name="llama-decode", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, job: Job) -> None:
        with self._gate:
            if not self._closed:
                self._inbox.put(lambda: self._waiting.append(job))
                return
        job.emit(EndpointUnavailable("the engine was closed"))

    def abort(self, job: Job) -> None:
        """Stop ``job`` within one evaluation; parks its prefill where the job asks for it."""
        self._inbox.put(lambda: self._leave(job))

    def take(self, job: Job) -> None:
        """The reader took one token."""
        # First count, then look: a decode thread that reaches its bound in between sees the new count.
        job.taken += 1
        if job.sent - job.taken >= _AHEAD - 1:
            self._inbox.put(_nothing)

    def close(self) -> None:
        """End the thread and wait for it. Jobs still here fail."""
        self._inbox.put(self._stop)
        self._thread.join()

    # --- on the decode thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        error = EndpointUnavailable("the engine was closed")
        try:
            while self._open:
                self._receive()
                if self._open:
                    self._assign()
                    self._step()
        except Exception as cause:  # noqa: BLE001 - whatever it is, the streams must hear of it
            error = EndpointUnavailable(f"the decode thread failed: {type(cause).__name__}")
        finally:
            with self._gate:
                self._closed = True
            self._drain()
            for job in [slot.job for slot in self._slots if slot.job is not None] + list(self._waiting):
                job.emit(error)
            self._api.llama_batch_free(self._batch)
            self._api.llama_free(self._context)

    def _stop(self) -> None:
        self._open = False

    def _receive(self) -> None:
        """Carry out what has arrived; wait for something where there is nothing else to do."""
        timeout: float | None = 0.0
        next_in_line = bool(self._waiting) and any(slot.job is None for slot in self._slots)
        if not next_in_line and not any(slot.runnable for slot in self._slots):
            ends = [slot.expires for slot in self._slots if slot.expires is not None]
            timeout = max(0.0, min(ends) - time.monotonic()) if ends else None
        with contextlib.suppress(Empty):
            self._inbox.get(timeout != 0.0, timeout)()
        self._drain()
        now = time.monotonic()
        for slot in self._slots:
            if slot.expires is not None and slot.expires <= now:
                self._forget(slot)

    def _drain(self) -> None:
        with contextlib.suppress(Empty):
            while True:
                self._inbox.get_nowait()()

    def _leave(self, job: Job) -> None:
        if job in self._waiting:
            self._waiting.remove(job)
        for slot in self._slots:
            if slot.job is job:
                self._release(slot)
                if job.park > 0 and job.taken == 0:
                    slot.todo.extend(job.ids[len(slot.held) :])
                    slot.expires = time.monotonic() + job.park

    def _assign(self) -> None:
        while self._waiting:
            idle = [slot for slot in self._slots if slot.job is None]
            if not idle:
                return
            job = self._waiting.popleft()
            # The last prompt token is evaluated again in any case: its logits were not kept.
            reusable = {slot.number: min(slot.common_prefix(job.ids), len(job.ids) - 1) for slot in idle}
            if job.may_reuse and max(reusable.values()) > 0:
                slot = max(idle, key=lambda slot: reusable[slot.number])
            else:
                slot = min(idle, key=lambda slot: (slot.expires is not None, bool(slot.held), slot.used))
            self._keep(slot, reusable[slot.number] if job.may_reuse else 0)
            slot.job = job
            slot.expires = None
            slot.todo = deque(job.ids[len(slot.held) :])
            job.emit(Started(reused=len(slot.held), queued=time.monotonic() - job.submitted))

    def _step(self) -> None:
        """One evaluation: a token of each decoding sequence, and as much prefill as fits beside them."""
        # Taking turns matters where a batch is smaller than the number of sequences.
        self._slots.rotate(-1)
        decoding = any(slot.decoding and slot.runnable for slot in self._slots)
        share = min(self._n_batch, _PREFILL_BESIDE_DECODE) if decoding else self._n_batch
        parts: list[tuple[_Slot, int]] = []
        room = self._n_batch
        for slot in sorted(self._slots, key=lambda slot: not slot.decoding) if self._n_batch > 1 else self._slots:
            if room and slot.runnable:
                count = min(len(slot.todo), room, share)
                parts.append((slot, count))
                room -= count
        if parts:
            self._evaluate(parts)

    def _evaluate(self, parts: list[tuple[_Slot, int]]) -> None:
        batch = self._batch
        row = 0
        ends: list[tuple[_Slot, int]] = []
        for slot, count in parts:
            tokens = [slot.todo.popleft() for _ in range(count)]
            for offset, token in enumerate(tokens, start=len(slot.held)):
                batch.token[row] = token
                batch.pos[row] = offset
                batch.n_seq_id[row] = 1
                batch.seq_id[row][0] = slot.number
                batch.logits[row] = False
                row += 1
            slot.held += tokens
            if not slot.todo and slot.job is not None:
                batch.logits[row - 1] = True
                ends.append((slot, row - 1))
        batch.n_tokens = row
        code = self._api.llama_decode(self._context, batch)
        if code != 0:
            for slot, _ in parts:
                self._fail(slot, EndpointUnavailable(f"llama.cpp could not evaluate a batch (code {code})"))
            return
        self.evaluated += row
        for slot, index in ends:
            self._advance(slot, index)

    def _advance(self, slot: _Slot, row: int) -> None:
        job = slot.job
        assert job is not None
        address = self._api.llama_get_logits_ith(self._context, row)
        logits = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (self._vocabulary_size,))
        token = job.sampler.choose(logits)
        if token in self._end_of_generation:
            self._finish(slot, job, Token(None, FinishReason.STOP))
        elif job.sent + 1 >= job.max_tokens or len(slot.held) + 1 >= self._context_length:
            self._finish(slot, job, Token(token, FinishReason.LENGTH))
        else:
            slot.todo.append(token)
            job.sent += 1
            job.emit(Token(token))

    def _finish(self, slot: _Slot, job: Job, last: Token) -> None:
        self._release(slot)
        job.emit(last)

    def _release(self, slot: _Slot) -> None:
        slot.job = None
        slot.todo.clear()
        slot.used = time.monotonic()

    def _keep(self, slot: _Slot, count: int) -> None:
        """Drop all but the first ``count`` tokens of the sequence's KV cache."""
        if count < len(slot.held) and not self._api.llama_memory_seq_rm(self._memory, slot.number, count, -1):
            # Recurrent and sliding-window caches cannot be cut.
            self._api.llama_memory_seq_rm(self._memory, slot.number, -1, -1)
            count = 0
        del slot.held[count:]

    def _forget(self, slot: _Slot) -> None:
        self._release(slot)
        self._keep(slot, 0)
        slot.expires = None

    def _fail(self, slot: _Slot, error: EndpointUnavailable) -> None:
        job = slot.job
        self._forget(slot)
        if job is not None:
            job.emit(error)


def _nothing() -> None:
    """Wakes the decode thread."""
