from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Callable, Iterator

import pytest

from actors.engines.base import EngineInfo
from actors.handles import ServeEndpoint, expected_info
from actors.placement import deployment_options
from actors.replica import EndpointReplica
from serve_app.core.errors import (
    DiscoError,
    EndpointFault,
    EndpointTimeout,
    EndpointUnavailable,
    Overloaded,
    PromptTooLong,
)
from serve_app.core.model import (
    AttemptId,
    EndpointKind,
    FinishReason,
    GenerationRequest,
    Pace,
    Receipt,
    Sampling,
    StreamItem,
    TextPrompt,
    TokenChunk,
)
from serve_app.engine_settings import EngineSettings, SimulatedEngineSettings
from serve_app.settings import EndpointSettings, PlacementSettings
from tests.conftest import RaySession

pytestmark = pytest.mark.ray

CANARY = "canary-in-the-prompt"


class CommandedEngine:
    """Does what the prompt's text says, so that a test can command an engine in another process."""

    def __init__(self) -> None:
        self.started: list[AttemptId] = []
        self.running = 0

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(model="commanded", context_length=512, vocabulary="v1", can_park=True)

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[StreamItem, None]:
        assert isinstance(request.prompt, TextPrompt)
        self.started.append(request.attempt_id)
        self.running += 1
        try:
            match request.prompt.text.split():
                case ["who"]:
                    text = " ".join(sorted(self.started))
                    yield Receipt(prompt_tokens=1)
                    yield TokenChunk(0, text, (1,), finish=FinishReason.STOP)
                case ["raise", kind, *_]:
                    yield Receipt(prompt_tokens=1)
                    raise ERRORS[kind]
                case ["end"]:
                    yield Receipt(prompt_tokens=1)
                case ["trickle", *_]:
                    yield Receipt(prompt_tokens=1)
                    for number in range(request.sampling.max_tokens):
                        await asyncio.sleep(0.005)
                        last = number + 1 == request.sampling.max_tokens
                        yield TokenChunk(number, "x", (number,), finish=FinishReason.LENGTH if last else None)
        finally:
            self.running -= 1


ERRORS: dict[str, Exception] = {
    "long": PromptTooLong("too long", "messages"),
    "full": Overloaded("full", 7.5),
    "gone": EndpointUnavailable("the phone is off"),
    "foreign": ValueError(f"cannot parse {CANARY}"),
    "cancelled": asyncio.CancelledError(),  # type: ignore[dict-item]
}


def commanded(_settings: EngineSettings, _slots: int, _threads: int) -> CommandedEngine:
    return CommandedEngine()


def broken(_settings: EngineSettings, _slots: int, _threads: int) -> CommandedEngine:
    raise EndpointUnavailable("no model file; fetch it first")


class StuckLoading(CommandedEngine):
    async def start(self) -> None:
        await asyncio.Event().wait()


def stuck(_settings: EngineSettings, _slots: int, _threads: int) -> CommandedEngine:
    return StuckLoading()


Deploy = Callable[..., ServeEndpoint]


@pytest.fixture
def deploy(ray_session: RaySession, request: pytest.FixtureRequest) -> Iterator[Deploy]:
    from ray import serve

    names: list[str] = []

    def deploy(
        make: Callable[[EngineSettings, int, int], CommandedEngine] = commanded,
        slots: int = 2,
        queue: int = 2,
        replicas: int = 1,
    ) -> ServeEndpoint:
        settings = EndpointSettings(
            kind=EndpointKind.DEVICE,
            engine=SimulatedEngineSettings(),
            slots=slots,
            queue=queue,
            placement=PlacementSettings(num_cpus=0.1, replicas=replicas),
        )
        # A name of its own: a handle to a second application of the same name never learns of its replicas.
        name = f"{request.node.name}_{len(names)}"
        deployment = serve.deployment(EndpointReplica).options(**deployment_options(settings, drain_seconds=0.1))
        names.append(name)
        handle = serve.run(deployment.bind("phone", settings, make=make), name=name, route_prefix=None)
        return ServeEndpoint(handle, expected_info("phone", settings))

    yield deploy
    for name in names:
        serve.delete(name)


def ask(command: str, attempt: AttemptId = "a", max_tokens: int = 20, pace: Pace | None = None) -> GenerationRequest:
    pace = pace or Pace(ahead_limit=100_000)
    return GenerationRequest(attempt, TextPrompt(command), Sampling(max_tokens=max_tokens), pace=pace)


async def collect(endpoint: ServeEndpoint, request: GenerationRequest) -> list[StreamItem]:
    return [item async for item in endpoint.generate(request)]


async def drain_into(seen: list[StreamItem], stream: AsyncGenerator[StreamItem, None]) -> None:
    async for item in stream:
        seen.append(item)  # noqa: PERF401 - what came before a failure is wanted


def pid_of(items: list[StreamItem]) -> int:
    receipt = items[0]
    assert isinstance(receipt, Receipt)
    return int(receipt.replica.rpartition(":")[2])


def text_of(items: list[StreamItem]) -> str:
    return "".join(item.text for item in items if isinstance(item, TokenChunk))


async def eventually(check: Callable[[], object], timeout: float = 20.0) -> None:
    deadline = asyncio.get_running_loop().time() + timeout
    while not check():
        assert asyncio.get_running_loop().time() < deadline, "the condition never came true"
        await asyncio.sleep(0.01)


def test_streams_errors_cancels_and_the_same_process_after_all_of_it(ray_session: RaySession, deploy: Deploy) -> None:
    endpoint = deploy()

    async def streams() -> int:
        items = await collect(endpoint, ask("trickle"))
        assert text_of(items) == "x" * 20
        last = items[-1]
        assert isinstance(last, TokenChunk)
        assert last.finish is FinishReason.LENGTH
        assert not endpoint.info.can_park
        info = await endpoint.describe()
        assert (info.model, info.context_length, info.vocabulary, info.can_park) == ("commanded", 512, "v1", True)
        assert endpoint.info is info
        return pid_of(items)

    async def errors() -> None:
        with pytest.raises(PromptTooLong) as too_long:
            await collect(endpoint, ask("raise long"))
        assert (type(too_long.value), too_long.value.param) == (PromptTooLong, "messages")
        with pytest.raises(Overloaded) as full:
            await collect(endpoint, ask("raise full"))
        assert (type(full.value), full.value.retry_after) == (Overloaded, 7.5)
        with pytest.raises(EndpointUnavailable) as gone:
            await collect(endpoint, ask("raise gone"))
        assert (gone.value.message, gone.value.endpoint) == ("the phone is off", "phone")
        for command in (f"raise foreign {CANARY}", "end", "raise cancelled"):
            with pytest.raises(EndpointFault) as fault:
                await collect(endpoint, ask(command))
            assert fault.value.endpoint == "phone"
            assert CANARY not in repr(fault.value)

    async def fast_cancels() -> None:
        async def leave_after(number: int) -> None:
            stream = endpoint.generate(ask("trickle", f"cancelled-{number}", max_tokens=2000))
            upcoming = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0.0007 * (number % 25))
            upcoming.cancel()
            await asyncio.wait({upcoming})
            await stream.aclose()

        for number in range(50):
            await leave_after(number)
        items = await asyncio.wait_for(collect(endpoint, ask("trickle", "fifty-first")), 10)
        assert text_of(items) == "x" * 20

    async def closing_early() -> None:
        for _ in range(6):
            stream = endpoint.generate(ask("trickle", max_tokens=5000))
            async for item in stream:
                if isinstance(item, TokenChunk):
                    break
            await stream.aclose()
        items = await asyncio.wait_for(collect(endpoint, ask("trickle")), 10)
        assert text_of(items) == "x" * 20

    pid = ray_session.run(streams())
    ray_session.run(errors())
    ray_session.run(fast_cancels())
    ray_session.run(closing_early())
    assert pid_of(ray_session.run(collect(endpoint, ask("trickle")))) == pid


def test_queue_departures_and_refusals(ray_session: RaySession, deploy: Deploy) -> None:
    endpoint = deploy(slots=1, queue=1)

    async def departures() -> None:
        first = endpoint.generate(ask("trickle", "first", max_tokens=5000))
        await anext(first)
        queued = asyncio.create_task(collect(endpoint, ask("trickle", "departed")))
        rival = asyncio.create_task(collect(endpoint, ask("trickle", "rival")))
        await asyncio.wait({queued, rival}, timeout=10, return_when=asyncio.FIRST_COMPLETED)
        refused, waiting = (queued, rival) if queued.done() else (rival, queued)
        assert isinstance(refused.exception(), Overloaded), "one of two waits for the only slot, the other is refused"
        described = await endpoint.describe(timeout=5)
        assert described.model == "commanded", "a control call needs no slot"
        waiting.cancel()
        await asyncio.wait({waiting})
        await first.aclose()
        started = text_of(await collect(endpoint, ask("who", "question"))).split()
        assert started == ["first", "question"]

    ray_session.run(departures())


def test_a_killed_replica_is_unavailable_and_the_other_one_serves(ray_session: RaySession, deploy: Deploy) -> None:
    endpoint = deploy(replicas=2, slots=8)

    async def main() -> None:
        pids: set[int] = set()
        while len(pids) < 2:
            answers = await asyncio.gather(*(collect(endpoint, ask("trickle", f"{n}", max_tokens=3)) for n in range(8)))
            pids |= {pid_of(items) for items in answers}
        stream = endpoint.generate(ask("trickle", "victim", max_tokens=100_000))
        seen = [await anext(stream) for _ in range(5)]
        victim = pid_of(seen)
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(EndpointUnavailable) as death:
            await drain_into(seen, stream)
        assert death.value.endpoint == "phone"
        indices = [item.index for item in seen if isinstance(item, TokenChunk)]
        assert indices == list(range(len(indices))), "what arrived before is intact"

        failures: list[DiscoError] = []
        for number in range(20):
            try:
                items = await collect(endpoint, ask("trickle", f"after-{number}", max_tokens=3))
                assert pid_of(items) != victim
            except EndpointUnavailable as error:
                failures.append(error)
        assert len(failures) <= 1, "at most the call that found the replica dead"

    ray_session.run(main())


def test_an_engine_that_cannot_start_says_why(ray_session: RaySession, deploy: Deploy) -> None:
    endpoint = deploy(make=broken)

    async def main() -> None:
        for _ in range(2):
            with pytest.raises(EndpointUnavailable, match="no model file; fetch it first") as reason:
                await endpoint.describe()
            assert reason.value.endpoint == "phone"
        with pytest.raises(EndpointUnavailable, match="no model file; fetch it first"):
            await collect(endpoint, ask("trickle"))

    ray_session.run(main())


def test_describe_gives_up_waiting_but_not_the_question(ray_session: RaySession, deploy: Deploy) -> None:
    endpoint = deploy(make=stuck)

    async def main() -> None:
        before = asyncio.all_tasks()
        for _ in range(3):
            with pytest.raises(EndpointTimeout):
                await endpoint.describe(timeout=0.05)
        asking = [task for task in asyncio.all_tasks() - before if task.get_name() == "describe phone"]
        assert len(asking) == 1
        asking[0].cancel()
        await asyncio.wait(asking)

    ray_session.run(main())


def test_a_resting_leg_shows_signs_of_life(ray_session: RaySession, deploy: Deploy) -> None:
    endpoint = deploy()

    async def main() -> None:
        pace = Pace(rate=10.0, ahead_limit=2, slack=0.02, hold=False)
        items = await collect(endpoint, ask("trickle", max_tokens=6, pace=pace))
        empty = [item for item in items if isinstance(item, TokenChunk) and item.count == 0]
        assert empty
        assert text_of(items) == "x" * 6

    ray_session.run(main())
