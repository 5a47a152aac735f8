"""Clients of a service that is being broken on purpose, and what each of them must have seen."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from actors.engines.base import Engine
from actors.engines.openai_http_sse import EventParser
from serve_app.client.answers import DONE
from serve_app.core.model import ChatPrompt, FinishReason, GenerationRequest, Message, Sampling, TokenChunk

#: Seconds after which a stream that has not ended hangs; its own limits are far below.
PATIENCE: Final = 90.0

#: Seconds within which a failure that follows a kill is taken for its consequence.
BLAME: Final = 1.0


@dataclass(frozen=True, slots=True)
class Errand:
    """One request. leaves_after: events after which the client goes away, None: it stays. pause: seconds for which it
    stops reading amid the answer."""

    number: int
    max_tokens: int
    rate: float | None
    leaves_after: int | None = None
    pause: float = 0.0
    pin: str | None = None
    question: str = ""

    @property
    def prompt(self) -> str:
        return self.question or f"tell me about bridge number {self.number}"

    @property
    def body(self) -> dict[str, Any]:
        return {
            "model": "disco",
            "messages": [{"role": "user", "content": self.prompt}],
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "disco": {"report": True, "consumption_rate": self.rate, "pin": self.pin},
        }


def errands(count: int, leaving: float, seed: int, max_tokens: tuple[int, int] = (20, 120)) -> list[Errand]:
    """``leaving``: the share of clients that go away before the end. ``max_tokens``: smallest and largest."""
    dice = random.Random(seed)
    return [
        Errand(
            number,
            dice.randint(*max_tokens),
            dice.choice([None, 4.8, 20.0]),
            dice.randint(0, 30) if dice.random() < leaving else None,
            dice.uniform(1.0, 3.0) if dice.random() < 0.05 else 0.0,
        )
        for number in range(count)
    ]


@dataclass
class Seen:
    """``arrivals``: seconds of ``time.monotonic`` and the tokens shown with each event that showed more.

    writer: the endpoint of the last one.
    """

    errand: Errand
    end: str = "hang"
    writer: str = ""
    text: str = ""
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    finishes: list[str] = field(default_factory=list)
    usage: dict[str, int] | None = None
    report: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    problems: list[str] = field(default_factory=list)

    def take(self, event: dict[str, Any]) -> None:
        """One event's data."""
        self.error = event.get("error")
        self.writer = event.get("disco", {}).get("endpoint", self.writer)
        for choice in event.get("choices", ()):
            self.text += choice["delta"].get("content") or ""
            if choice["finish_reason"] is not None:
                self.finishes.append(choice["finish_reason"])
        if event.get("usage"):
            self.usage, self.report = event["usage"], event["disco"]


async def run_errand(http: aiohttp.ClientSession, url: str, errand: Errand) -> Seen:
    seen = Seen(errand)
    await follow(http, url, seen)
    return seen


async def follow(http: aiohttp.ClientSession, url: str, seen: Seen) -> None:
    """Run ``seen.errand``; what it sees stands in ``seen`` as soon as it is seen."""
    body = seen.errand.body
    try:
        async with asyncio.timeout(PATIENCE), http.post(f"{url}/v1/chat/completions", json=body) as response:
            if response.status != 200:
                seen.end, seen.error = "error", (await response.json())["error"]
                return
            seen.end = "silence"
            await _read(response, seen)
    except TimeoutError:
        seen.end = "hang"
    except (aiohttp.ClientError, ValueError, KeyError) as error:
        seen.end = f"broken: {type(error).__name__}"


async def _read(response: aiohttp.ClientResponse, seen: Seen) -> None:
    parser, events = EventParser(), 0
    async for piece in response.content.iter_any():
        for event in parser.feed(piece):
            if event.id.isdecimal() and int(event.id) > (seen.arrivals[-1][1] if seen.arrivals else -1):
                seen.arrivals.append((time.monotonic(), int(event.id)))
            if event.data == DONE:
                seen.end = "complete"
                return
            seen.take(json.loads(event.data))
            if seen.error is not None:
                seen.end = "error"
                return
            events += 1
            if events == seen.errand.leaves_after:
                seen.end = "left"
                response.close()
                return
            if events == 5 and seen.errand.pause:
                await asyncio.sleep(seen.errand.pause)


class Judge:
    """Knows what every answer has to be: what ``engine``, which has started, writes without any disturbance."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def judge(self, seen: Seen) -> None:
        """Write into ``seen.problems`` whatever must not be."""
        text, tokens, finish = await self._reference(seen.errand)
        if not text.startswith(seen.text):
            seen.problems.append("wrong text")
        if seen.end == "complete":
            if seen.text != text:
                seen.problems.append("incomplete text")
            if seen.finishes != [finish]:
                seen.problems.append(f"finish reasons {seen.finishes}")
            self._judge_accounts(seen, tokens)
        elif seen.end == "error":
            if not {"code", "message", "retryable"} <= set(seen.error or {}):
                seen.problems.append("an error without its fields")
            elif seen.error is not None and not seen.error["retryable"]:
                seen.problems.append(f"not an endpoint's fault: {seen.error['code']}")
        elif seen.end != "left":
            seen.problems.append(seen.end)

    def _judge_accounts(self, seen: Seen, tokens: int) -> None:
        if seen.usage is None or seen.report is None:
            seen.problems.append("no usage")
            return
        legs = seen.report["legs"]
        if seen.usage["completion_tokens"] != tokens or seen.arrivals[-1][1] != tokens:
            seen.problems.append("tokens lost or doubled")
        if abs(seen.report["cost_usd"] - sum(leg["cost_usd"] for leg in legs)) > 1e-12:
            seen.problems.append("the cost is not that of the legs")
        if any(leg["outcome"] == "running" for leg in legs) or len({leg["attempt"] for leg in legs}) != len(legs):
            seen.problems.append("legs out of order")

    async def _reference(self, errand: Errand) -> tuple[str, int, str]:
        prompt = ChatPrompt((Message("user", errand.prompt),))
        text, tokens, finish = "", 0, ""
        request = GenerationRequest("reference", prompt, Sampling(errand.max_tokens, temperature=0.0))
        async for item in self._engine.generate(request):
            if isinstance(item, TokenChunk):
                text, tokens = text + item.text, tokens + item.count
                finish = item.finish.value if item.finish is not None else finish
        return text, tokens, FinishReason(finish).value


@dataclass(frozen=True, slots=True)
class Rescue:
    """One stream's way over a kill, in seconds. noticed: until the router started somebody else, by the stream's own
    clock, set by its first token's arrival and so late by that token's way to the client. resumed: until the client's
    next token."""

    noticed: float
    resumed: float


def rescues(all_seen: Sequence[Seen], kills: Sequence[float]) -> list[Rescue]:
    """Of streams that were rescued once, after a leg of theirs had failed. ``kills``: by ``time.monotonic``."""
    found = []
    for seen in all_seen:
        report = seen.report or {}
        moves = [m for m in report.get("migrations", ()) if m["reason"] == "rescue" and m["gap_s"] is not None]
        if len(moves) != 1 or not any(leg["error"] == "endpoint_unavailable" for leg in report["legs"]):
            continue
        opened = seen.arrivals[0][0] - report["ttft_s"]
        started = opened + next(leg["start_s"] for leg in report["legs"] if leg["reason"] == "rescue")
        resumed = next((at for at, shown in seen.arrivals if shown > moves[0]["at_token"]), None)
        kill = max((kill for kill in kills if started - BLAME < kill < started), default=None)
        if kill is not None and resumed is not None:
            found.append(Rescue(started - kill, resumed - kill))
    return found


def tally(all_seen: Sequence[Seen]) -> dict[str, Any]:
    legs = [leg for seen in all_seen if seen.report for leg in seen.report["legs"]]
    return {
        "ends": dict(Counter(seen.end for seen in all_seen)),
        "errors": dict(Counter(seen.error["code"] for seen in all_seen if seen.error)),
        "problems": dict(Counter(problem for seen in all_seen for problem in seen.problems)),
        "legs": dict(Counter(f"{leg['reason']} {leg['outcome']}" for leg in legs)),
    }
