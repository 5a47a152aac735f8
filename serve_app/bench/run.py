"""An open loop: requests go out when they are due, whether earlier ones were answered or not, to all servers alike."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import aiohttp

from serve_app.bench.outcome import OK, TIMEOUT, Outcome, Reader, Reading
from serve_app.bench.workload import Request, Workload
from serve_app.client.answers import chunks
from serve_app.client.calls import Served, call, served
from serve_app.client.errors import CallFailed
from serve_app.client.server import Server, open_session

#: Seconds within which a server that has to load its model first has answered.
_WARM_UP: Final = 120.0


@dataclass(frozen=True, slots=True)
class Limits:
    """``timeout``: seconds from when a request is due. ``inflight``: requests under way at once, for each server.

    What is due beyond that is sent later; its times count from when it was due all the same.
    """

    timeout: float = 120.0
    inflight: int = 1000


@dataclass(frozen=True, slots=True)
class Target:
    """A server that is ready to be asked. ``limit_field``: its name for the longest answer."""

    server: Server
    session: aiohttp.ClientSession
    served: Served
    limit_field: str
    rate: float | None

    def body(self, prompt: str, max_tokens: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.served.model,
            "messages": [{"role": "user", "content": prompt}],
            self.limit_field: max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.served.ours:
            body["disco"] = {"report": True} | ({} if self.rate is None else {"consumption_rate": self.rate})
        return body

    async def close(self) -> None:
        await self.session.close()


async def connect(server: Server, model: str | None, rate: float | None, warm_up: bool) -> Target:
    """``warm_up``: ask for one token, which does not count. Raises ``CallFailed`` for what would fail every request."""
    session = open_session(server, connections=0)
    try:
        target = Target(server, session, await served(session, server, model), "max_tokens", rate)
        if warm_up:
            target = await _warmed(target)
    except BaseException:
        await session.close()
        raise
    return target


async def _warmed(target: Target) -> Target:
    newer = Target(target.server, target.session, target.served, "max_completion_tokens", target.rate)
    for candidate in (target, newer):
        try:
            url, body = f"{candidate.server.api}/chat/completions", candidate.body("Hi", 1)
            async with call(candidate.session, "POST", url, body, total=_WARM_UP) as response:
                async for _ in chunks(response, asyncio.get_running_loop().time):
                    pass
        except CallFailed as failure:
            # Some of OpenAI's models refuse the older name.
            if candidate is newer or "max_completion_tokens" not in failure.message:
                raise
        else:
            break
    return candidate


class Observer(Protocol):
    """``rank``: which of the servers."""

    def sent(self, rank: int) -> None: ...

    def ended(self, rank: int, outcome: Outcome, elapsed: float) -> None:
        """``elapsed``: seconds since the run's beginning."""


async def drive(
    targets: Sequence[Target], workload: Workload, limits: Limits, reader: Reader, observer: Observer
) -> None:
    """Until the last answer. The same requests go to all ``targets``, each a fraction of the mean gap later."""
    began = asyncio.get_running_loop().time()
    shift = workload.mean_gap / len(targets)
    async with asyncio.TaskGroup() as loads:
        for rank, target in enumerate(targets):
            load = _Load(rank, target, limits, reader, observer, began)
            loads.create_task(load.run(workload, began + rank * shift))


class _Load:
    """One server's share of a run that began at ``began``, in the loop's seconds."""

    def __init__(
        self, rank: int, target: Target, limits: Limits, reader: Reader, observer: Observer, began: float
    ) -> None:
        self._rank = rank
        self._target = target
        self._limits = limits
        self._reader = reader
        self._observer = observer
        self._began = began
        self._clock = asyncio.get_running_loop().time
        self._room = asyncio.Semaphore(limits.inflight)

    async def run(self, workload: Workload, origin: float) -> None:
        """``origin``: when the first request is due."""
        async with asyncio.TaskGroup() as running:
            for request in workload.requests():
                due = origin + request.at
                await asyncio.sleep(max(0.0, due - self._clock()))
                await self._room.acquire()
                self._observer.sent(self._rank)
                running.create_task(self._one(request, due)).add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Outcome]) -> None:
        self._room.release()
        if not task.cancelled() and task.exception() is None:
            self._observer.ended(self._rank, task.result(), self._clock() - self._began)

    async def _one(self, request: Request, due: float) -> Outcome:
        sent = self._clock()
        code, message, reading = OK, "", Reading(numbered=False)
        body = self._target.body(request.prompt, request.max_tokens)
        try:
            async with (
                asyncio.timeout_at(due + self._limits.timeout),
                call(
                    self._target.session, "POST", f"{self._target.server.api}/chat/completions", body, total=None
                ) as response,
            ):
                reading.numbered = "x-disco-policy" in response.headers
                async for chunk in chunks(response, self._clock):
                    reading.take(chunk)
        except CallFailed as failure:
            code, message = failure.code or (f"http_{failure.status}" if failure.status else "failed"), failure.message
        except TimeoutError:
            code, message = TIMEOUT, f"not complete {self._limits.timeout:g} s after it was due"
        return reading.outcome(request.number, due, sent, self._clock(), self._reader, code, message)
