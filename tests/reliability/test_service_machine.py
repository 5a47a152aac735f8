"""A service with keys, in whatever order things happen to it: requests, departures, faults, new settings, a shutdown.

Hypothesis chooses the order. Time is virtual, everything between HTTP and endpoints is real.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncGenerator, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from serve_app.core.errors import EndpointUnavailable, Overloaded
from serve_app.core.model import ChatPrompt, EndpointInfo, FinishReason, GenerationRequest, Receipt, TokenChunk
from serve_app.keys import sha256_of
from serve_app.settings import LiveSettings
from serve_app.sim.virtual_time import VirtualTimeLoop
from serve_app.spending import FILE_NAME
from tests.support.effort import examples
from tests.support.scripted_service import Answer, Stack
from tests.support.session_stage import CLOUD, LAPTOP, PHONE

T = TypeVar("T")
Mood = Literal["well", "dead", "hung", "full", "mad"]

KEYS = {"alice": "sk-disco-alice", "bob": "sk-disco-bob"}
MOST_STREAMS, MOST_OF_ALICE = 5, 2
BUDGET = 0.02
TEXT = "".join(chr(ord("a") + index % 26) for index in range(40))
#: Seconds after which whatever is under way must be over.
LONGEST = 90.0
LIVE: dict[str, Any] = {
    "policy": {"name": "auto", "budget": 0.5},
    "migration": {"mode": "overlap"},
    "limits": {"first_token_seconds": 8.0, "idle_seconds": 2.0, "stream_seconds": 60.0},
    "prices": {
        "usd_per_megajoule": 5000.0,
        "endpoints": {
            "cloud": {"input_usd_per_mtok": 10.0, "output_usd_per_mtok": 40.0},
            "phone": {"prefill_joules_per_token": 0.1, "decode_joules_per_token": 0.1},
            "laptop": {"prefill_joules_per_token": 0.2, "decode_joules_per_token": 0.2},
        },
    },
}


@dataclass
class MoodyEndpoint:
    """Writes the same text as the others, as far as its mood lets it. ``asked_by``: whose prompts it saw."""

    info: EndpointInfo
    mood: Mood = "well"
    open: int = 0
    asked_by: set[str] = field(default_factory=set)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Receipt | TokenChunk, None]:
        assert isinstance(request.prompt, ChatPrompt)
        self.asked_by.add(request.prompt.messages[0].content)
        self.open += 1
        try:
            if self.mood == "full":
                raise Overloaded("full")
            await self._pass(0.3)
            yield Receipt(10)
            start = request.handoff.next_index if request.handoff else 0
            for index in range(start, min(len(TEXT), start + request.sampling.max_tokens)):
                await self._pass(0.05)
                number = index + 1 if self.mood == "mad" else index
                last = index + 1 == start + request.sampling.max_tokens
                yield TokenChunk(number, TEXT[index], (index,), finish=FinishReason.LENGTH if last else None)
                if last:
                    return
            yield TokenChunk(len(TEXT), "", count=0, finish=FinishReason.STOP)
        finally:
            self.open -= 1

    async def _pass(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        while self.mood == "hung":  # noqa: ASYNC110 - an attribute that the machine sets
            await asyncio.sleep(0.5)
        if self.mood == "dead":
            raise EndpointUnavailable("dead", self.info.id)


@dataclass
class Client:
    name: str
    max_tokens: int
    gone: asyncio.Event
    task: asyncio.Task[Answer]

    def judge(self) -> None:
        answer, whole = self.task.result(), TEXT[: self.max_tokens]
        if answer.status != 200:
            assert answer.status in (0, 429, 502, 503, 504)
            assert answer.status != 0 or self.gone.is_set(), "only who left gets no answer"
            return
        if not answer.data:
            assert json.loads(answer.body)["choices"][0]["message"]["content"] == whole
            return
        assert whole.startswith(answer.text)
        if answer.data[-1] == "[DONE]":
            assert answer.text == whole
            assert answer.report["completion_tokens"] == len(whole)
            assert answer.report["key"] == self.name
        elif not self.gone.is_set():
            assert answer.error["code"] != "internal_error"


class ServiceMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.loop = VirtualTimeLoop()
        self.unhandled: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.unhandled.append(context))
        self.folder = tempfile.TemporaryDirectory(prefix="machine")
        self.spans = InMemorySpanExporter()
        self.clients: list[Client] = []
        self.drained = False

        async def build() -> Stack:
            self.endpoints = {info.id: MoodyEndpoint(info) for info in (CLOUD, PHONE, LAPTOP)}
            access = {
                "keys": {
                    "alice": {"sha256": sha256_of(KEYS["alice"].encode()), "streams": MOST_OF_ALICE, "usd": BUDGET},
                    "bob": {"sha256": sha256_of(KEYS["bob"].encode()), "pin": "device_only"},
                },
                "spending_folder": self.folder.name,
            }
            return Stack(
                *self.endpoints.values(),  # type: ignore[arg-type]
                live=LIVE,
                exporter=self.spans,
                access=access,
                router={"max_streams": MOST_STREAMS},
            )

        self.stack = self.run(build())

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(coro)

    @property
    def under_way(self) -> list[Client]:
        return [client for client in self.clients if not client.task.done()]

    # --- what may happen --------------------------------------------------------------------------------------

    @rule(
        name=st.sampled_from(sorted(KEYS)),
        max_tokens=st.integers(1, 50),
        stream=st.booleans(),
        rate=st.sampled_from([None, 4.8, 100.0]),
        delivery=st.sampled_from(["eager", "paced"]),
        read=st.sampled_from([(), (), (3.0, 0.0)]),
    )
    def ask(self, name: str, max_tokens: int, stream: bool, rate: float | None, delivery: str, read: Any) -> None:
        refusal = self.expected_refusal(name)
        gone = asyncio.Event()
        fields = {
            "messages": [{"role": "user", "content": name}],
            "max_tokens": max_tokens,
            "stream": stream,
            "disco": {"report": True, "consumption_rate": rate, "delivery": delivery},
        }
        asking = self.stack.ask(key=KEYS[name], gone=gone, read=() if refusal else read, **fields)
        client = Client(name, max_tokens, gone, self.loop.create_task(asking))
        self.clients.append(client)
        self.advance(0.01)
        assert not refusal or client.task.result().error["code"] == refusal

    def expected_refusal(self, name: str) -> str:
        """The code with which another request must be refused at once; empty where it must not."""
        if name == "alice" and self.spent(name) >= BUDGET:
            return "insufficient_quota"
        if name == "alice" and sum(client.name == name for client in self.under_way) >= MOST_OF_ALICE:
            return "rate_limit_exceeded"
        if self.drained:
            return "draining"
        return "overloaded" if len(self.under_way) >= MOST_STREAMS else ""

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        client = self.under_way[data.draw(st.integers(0, len(self.under_way) - 1))]
        client.gone.set()
        self.advance(0.01)
        assert client.task.done(), "a departure is noticed at once"

    @rule(name=st.sampled_from(["cloud", "phone", "laptop"]), mood=st.sampled_from(get_args(Mood)))
    def feel(self, name: str, mood: Mood) -> None:
        self.endpoints[name].mood = mood

    @rule(seconds=st.sampled_from([0.05, 0.4, 2.0, 12.0]))
    def advance(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    @rule(
        policy=st.sampled_from(["auto", "paper", "joint", "cloud-only", "device-only"]),
        budget=st.sampled_from([0.0, 0.3, 1.0]),
        mode=st.sampled_from(["off", "break", "overlap"]),
        rescues=st.integers(0, 3),
        faults=st.sampled_from([1, 5]),
    )
    def reconfigure(self, policy: str, budget: float, mode: str, rescues: int, faults: int) -> None:
        changed = {
            "policy": {"name": policy, "budget": budget},
            "migration": {"mode": mode, "max_rescues": rescues},
            "limits": LIVE["limits"] | {"breaker_faults": faults},
        }
        self.stack.service.reconfigure(LiveSettings.model_validate(LIVE | changed))

    @precondition(lambda self: not self.drained and len(self.clients) > 5)
    @rule(grace=st.sampled_from([0.0, 1.0]))
    def drain(self, grace: float) -> None:
        self.drained = True
        self.run(self.stack.surface.desk.admission.drain(grace))
        self.advance(0.01)
        assert self.under_way == []

    # --- what always holds ------------------------------------------------------------------------------------

    @invariant()
    def nobody_has_more_than_allowed(self) -> None:
        assert self.stack.surface.desk.admission.running <= MOST_STREAMS
        assert sum(client.name == "alice" for client in self.under_way) <= MOST_OF_ALICE
        assert "bob" not in self.endpoints["cloud"].asked_by
        assert self.unhandled == []

    def teardown(self) -> None:
        for endpoint in self.endpoints.values():
            endpoint.mood = "well"
        self.advance(LONGEST)
        assert self.under_way == [], "nothing hangs"
        for client in self.clients:
            client.judge()
        self.everything_is_returned()
        self.the_accounts_add_up()
        assert self.unhandled == []
        assert self.stack.surface.callers is not None
        self.stack.surface.callers.close()
        self.loop.close()
        self.folder.cleanup()

    def everything_is_returned(self) -> None:
        assert self.stack.running == 0
        assert [endpoint.open for endpoint in self.endpoints.values()] == [0, 0, 0]
        assert asyncio.all_tasks(self.loop) == set()

    def the_accounts_add_up(self) -> None:
        async def rendered() -> bytes:
            return self.stack.surface.metrics.render()

        counted: dict[str, float] = {}
        for family in text_string_to_metric_families(self.run(rendered()).decode()):
            for sample in family.samples:
                counted[sample.name] = counted.get(sample.name, 0.0) + sample.value
        assert counted.get("disco_requests_total", 0.0) == len(self.clients)
        spent = sum(self.spent(name) for name in KEYS)
        assert abs(counted.get("disco_cost_usd_total", 0.0) - spent) < 1e-9
        self.stack.telemetry.shutdown()
        kinds = [span.name for span in self.spans.get_finished_spans()]
        answers = counted.get("gen_ai_server_request_duration_seconds_count", 0.0)
        assert kinds.count("chat disco") == answers
        assert kinds.count("POST /v1/chat/completions") == len(self.clients)
        assert kinds.count("handoff") == counted.get("disco_migrations_total", 0.0)
        legs = [kind for kind in kinds if kind.startswith("chat ") and kind != "chat disco"]
        assert len(legs) == counted.get("disco_legs_total", 0.0)

    def spent(self, name: str) -> float:
        """By the file."""
        lines = (Path(self.folder.name) / FILE_NAME).read_text("utf-8").splitlines()
        return sum(entry["usd"] for entry in map(json.loads, lines) if entry["key"] == name)


ServiceMachine.TestCase.settings = settings(
    max_examples=examples(30, 600),
    stateful_step_count=30,
    # A sequence that fails is told as it is: making it shorter takes minutes.
    phases=[Phase.explicit, Phase.generate],
)


class TestService(ServiceMachine.TestCase):  # type: ignore[misc,valid-type]
    """Whatever happens in whatever order."""
