"""Circuit breakers and fallbacks as a request meets them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from serve_app.core.breaker import BreakerState, Health
from serve_app.core.errors import EndpointUnavailable, InvalidRequest, Overloaded, PromptTooLong
from serve_app.core.estimate import PromptEstimator
from serve_app.core.estimates import Estimates
from tests.http.fakes import until
from tests.support.scripted import Hang, ScriptedEndpoint, words
from tests.support.scripted_service import Stack
from tests.support.session_stage import CLOUD, PHONE
from tests.support.virtual_loop import run_virtual

TEXT = "abcdefghijklmnopqrst"
GONE = EndpointUnavailable("gone")


def pair(*cloud: Any) -> tuple[ScriptedEndpoint, ScriptedEndpoint]:
    return ScriptedEndpoint(CLOUD, cloud), ScriptedEndpoint(PHONE, words(TEXT, 0.2, 0.05))


def states(stack: Stack) -> dict[str, str]:
    return {name: stack.state.breakers[name].state.value for name in stack.endpoints}


@pytest.mark.parametrize("cut", [(0.05, GONE), (0.05, Hang), (0.05, RuntimeError())])
@pytest.mark.parametrize("after", [0, 8])
def test_an_outcome_is_decided_at_the_end_so_cuts_in_the_middle_open_the_breaker(after: int, cut: Any) -> None:
    async def main() -> None:
        cloud, phone = pair(*words(TEXT[:after], 0.2, 0.05), cut)
        stack = Stack(cloud, phone, live={"limits": {"first_token_seconds": 5.0}})
        five = [asyncio.create_task(stack.stream()) for _ in range(5)]
        await until(lambda: states(stack)["cloud"] == "open")
        assert states(stack) == {"cloud": "open", "phone": "closed"}
        before = len(cloud.calls)
        answer = await stack.stream()
        assert {done.text for done in await asyncio.gather(*five)} == {TEXT}
        assert (answer.text, len(cloud.calls)) == (TEXT, before), "nobody is sent there"
        assert answer.report["avoided"] == ["cloud"]
        assert answer.report["reason"].endswith("avoiding cloud")

    run_virtual(main())


def test_it_is_tried_again_by_one_request_and_serves_all_once_it_is_well() -> None:
    async def main() -> None:
        cloud, phone = pair((0.05, GONE))
        stack = Stack(cloud, phone)
        for _ in range(5):
            await stack.stream()
        cloud.script = words(TEXT, 0.2, 0.05)
        await asyncio.sleep(1.0)
        calls = len(cloud.calls)
        together = [asyncio.create_task(stack.stream()) for _ in range(10)]
        await asyncio.sleep(0.1)
        assert stack.state.breakers["cloud"].state is BreakerState.HALF_OPEN
        assert len(cloud.calls) == calls + 1, "one probe"
        assert {answer.text for answer in await asyncio.gather(*together)} == {TEXT}
        assert states(stack)["cloud"] == "closed"
        assert (await stack.stream()).report["winner"] == "cloud"

    run_virtual(main())


def test_a_request_whose_every_endpoint_is_barred_still_tries_one() -> None:
    async def main() -> None:
        one = ScriptedEndpoint(CLOUD, [(0.05, GONE)])
        stack = Stack(one)
        for _ in range(6):
            assert (await stack.ask()).status == 503
        assert states(stack) == {"cloud": "open"}
        one.script = words(TEXT, 0.2, 0.05)
        assert (await stack.stream()).text == TEXT
        assert states(stack) == {"cloud": "closed"}

    run_virtual(main())


@pytest.mark.parametrize(
    "fault", [InvalidRequest("no", "messages"), PromptTooLong("long", "messages"), Overloaded("full", 1.0)]
)
def test_bad_requests_and_full_queues_are_no_fault_of_an_endpoint(fault: Exception) -> None:
    async def main() -> None:
        cloud, phone = pair((0.05, fault))
        phone.script = [(0.05, fault)]
        stack = Stack(cloud, phone)
        for _ in range(20):
            assert (await stack.ask()).status in (400, 429)
        assert states(stack) == {"cloud": "closed", "phone": "closed"}
        cloud.script = words(TEXT, 0.2, 0.05)
        assert (await stack.stream()).report["winner"] == "cloud"

    run_virtual(main())


def test_clients_that_leave_are_no_fault_of_an_endpoint() -> None:
    async def main() -> None:
        cloud, phone = pair(*words(TEXT, 0.2, 0.05))
        stack = Stack(cloud, phone)
        for rank in range(20):
            await stack.ask(stream=True, leave_at=asyncio.get_running_loop().time() + 0.05 * rank)
        assert states(stack)["cloud"] == "closed"

    run_virtual(main())


def test_a_failure_is_counted_for_the_endpoint_that_failed_and_no_other() -> None:
    async def main() -> None:
        cloud, phone = pair(*words(TEXT, 0.2, 0.05))
        phone.script = [(0.05, GONE)]
        stack = Stack(cloud, phone, live={"policy": {"name": "disco-d", "budget": 1.0}})
        for _ in range(6):
            assert (await stack.stream()).text == TEXT
        assert states(stack) == {"cloud": "closed", "phone": "open"}
        rendered = stack.surface.metrics.render().decode()
        assert (
            f'disco_legs_total{{endpoint="phone",kind="device",outcome="failed",reason="dispatch"}} {len(phone.calls)}'
            in rendered
        )

    run_virtual(main())


def test_a_sick_side_is_neither_hedged_nor_moved_to() -> None:
    async def main() -> None:
        cloud, phone = pair(*words(TEXT * 4, 0.2, 0.01))
        live = {"policy": {"name": "disco-d", "budget": 0.05}, "migration": {"mode": "overlap"}}
        stack = Stack(cloud, phone, live=live)
        well = await stack.stream()
        assert "hedge" in well.report["reason"]
        assert well.report["migrations"]
        for rank in range(5):
            stack.state.breakers["phone"].ended(f"x{rank}", Health.FAULT, 0.0, asyncio.get_running_loop().time())
        before = len(phone.calls)
        answer = await stack.stream()
        assert (answer.text, len(phone.calls)) == (TEXT * 4, before)
        assert {v["target"]: v["verdict"] for v in answer.report["verdicts"]} == {"phone": "unhealthy"}

    run_virtual(main())


def test_a_pin_is_stronger_than_a_breaker() -> None:
    async def main() -> None:
        cloud, phone = pair((0.05, GONE))
        stack = Stack(cloud, phone)
        for _ in range(6):
            answer = await stack.ask(disco={"pin": "cloud_only"})
            assert (answer.status, answer.error["code"]) == (503, "endpoint_unavailable")
        assert phone.calls == []

    run_virtual(main())


def test_a_planner_that_fails_falls_back_to_a_static_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        cloud, phone = pair(*words(TEXT, 0.2, 0.05))
        stack = Stack(cloud, phone, live={"policy": {"name": "disco-d"}})
        monkeypatch.setattr(stack.state.planner, "_choose", _raise)
        answer = await stack.stream()
        assert (answer.text, answer.report["policy"]) == (TEXT, "static")
        assert stack.state.planner.fallbacks == 1

    run_virtual(main())


@pytest.mark.parametrize(
    "name", ["PromptEstimator.estimate", "PromptEstimator.learn", "Estimates.usual", "Estimates.observe"]
)
def test_an_estimate_that_fails_costs_nobody_an_answer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        owner, method = name.split(".")
        kind = {"PromptEstimator": PromptEstimator, "Estimates": Estimates}[owner]
        monkeypatch.setattr(kind, method, _raise)
        cloud, phone = pair(*words(TEXT, 0.2, 0.05))
        stack = Stack(cloud, phone)
        for _ in range(3):
            answer = await stack.stream()
            assert (answer.text, answer.data[-1]) == (TEXT, "[DONE]")
        assert stack.running == 0
        assert stack.state.planner.fallbacks == (3 if method in ("estimate", "usual") else 0)

    run_virtual(main())


def _raise(*_: object) -> None:
    raise ZeroDivisionError
