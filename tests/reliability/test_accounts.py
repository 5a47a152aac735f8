"""Who pays for what: winners, losers, streams that were cut, moved or left; and budgets under a rush."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from serve_app.core.errors import EndpointUnavailable
from tests.support.prometheus import value
from tests.support.scripted import Hang, ScriptedEndpoint, words
from tests.support.scripted_service import Stack
from tests.support.session_stage import CLOUD, PHONE
from tests.support.virtual_loop import run_virtual

TEXT = "abcdefghijklmnopqrst"
RACE = {"policy": {"name": "disco-d", "budget": 1.0}}
INPUT, OUTPUT = 1e-6, 1e-5


def pair(cloud: Any, phone: Any, **more: Any) -> tuple[ScriptedEndpoint, ScriptedEndpoint]:
    return ScriptedEndpoint(CLOUD, cloud, **more), ScriptedEndpoint(PHONE, phone, **more)


@pytest.mark.parametrize("billed", ["used", "nothing"])
def test_a_losers_cost_is_in_the_ledger_unless_its_provider_forgives_it(billed: str) -> None:
    async def main() -> None:
        cloud, phone = pair([(0.0, Hang)], words(TEXT, 0.2, 0.05), prompt_tokens=30)
        price = {"input_usd_per_mtok": 1.0, "output_usd_per_mtok": 10.0, "bill_on_cancel": billed}
        stack = Stack(cloud, phone, live=RACE | {"prices": {"endpoints": {"cloud": price}}})
        report = (await stack.stream()).report
        (lost,) = [leg for leg in report["legs"] if leg["endpoint"] == "cloud"]
        assert (lost["outcome"], lost["tokens"], lost["prefill_tokens"]) == ("lost", 0, 30)
        assert lost["cost_usd"] == pytest.approx(30 * INPUT if billed == "used" else 0.0)
        assert report["cost_usd"] == pytest.approx(sum(leg["cost_usd"] for leg in report["legs"]))
        assert (lost["cost_exact"], report["cost_exact"]) == (False, False), "it may have done more than it said"

    run_virtual(main())


def test_a_loser_whose_prefill_never_began_owes_nothing() -> None:
    async def main() -> None:
        cloud, phone = pair([(0.0, EndpointUnavailable("refused"))], words(TEXT, 0.2, 0.05))

        async def refused(_: object) -> Any:
            raise EndpointUnavailable("refused")
            yield

        cloud.generate = refused  # type: ignore[method-assign]
        report = (await Stack(cloud, phone, live=RACE).stream()).report
        (lost,) = [leg for leg in report["legs"] if leg["endpoint"] == "cloud"]
        assert (lost["tokens"], lost["prefill_tokens"], lost["cost_usd"], lost["cost_exact"]) == (0, 0, 0.0, True)

    run_virtual(main())


def test_a_moved_answer_is_billed_once_and_booked_by_leg() -> None:
    async def main() -> None:
        cut = [*words(TEXT[:8], 0.2, 0.05), (0.05, EndpointUnavailable("gone"))]
        cloud, phone = pair(cut, words(TEXT, 0.2, 0.05))
        answer = await Stack(cloud, phone).stream(stream_options={"include_usage": True})
        last = answer.chunks[-1]
        assert (last["choices"], answer.data[-1]) == ([], "[DONE]")
        assert last["usage"] == {"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30}
        legs = [(leg["endpoint"], leg["prefill_tokens"], leg["tokens"]) for leg in answer.report["legs"]]
        assert legs == [("cloud", 10, 8), ("phone", 18, 12)]
        assert all(chunk["usage"] is None for chunk in answer.chunks[:-1])

    run_virtual(main())


def test_a_client_that_did_not_ask_for_usage_gets_none() -> None:
    async def main() -> None:
        cloud, phone = pair(words(TEXT, 0.2, 0.05), words(TEXT, 0.2, 0.05))
        answer = await Stack(cloud, phone).ask(stream=True)
        assert all("usage" not in chunk and chunk["choices"] for chunk in answer.chunks)

    run_virtual(main())


@pytest.mark.parametrize("end", ["leaves", "fails"])
def test_the_usage_of_a_stream_that_was_cut_short_is_recorded(end: str) -> None:
    async def main() -> None:
        script = words(TEXT, 0.2, 0.05) if end == "leaves" else [*words(TEXT[:7], 0.2, 0.05), (0.3, Hang)]
        stack = Stack(ScriptedEndpoint(CLOUD, script), live={"migration": {"max_rescues": 0}})
        await stack.ask(stream=True, leave_at=0.2 + 6.5 * 0.05 if end == "leaves" else None)
        rendered = stack.surface.metrics.render().decode()
        assert value(rendered, "gen_ai_client_token_usage_sum", gen_ai_token_type="output") == 7
        assert value(rendered, "gen_ai_client_token_usage_sum", gen_ai_token_type="input") == 10
        cost = value(rendered, "disco_cost_usd_total", endpoint="cloud", kind="cloud")
        assert cost == pytest.approx(10 * INPUT + 7 * OUTPUT)

    run_virtual(main())


@pytest.mark.parametrize("gap", [0.01, 2.0])
@pytest.mark.parametrize("share", [0.25, 0.5])
def test_a_rush_cannot_overspend_the_budget_however_long_its_streams_run(share: float, gap: float) -> None:
    """Reserved at admission: all arrive at once, and none has settled when the next one asks."""

    async def main() -> None:
        cloud, phone = pair(words(TEXT, 5.0, gap), words(TEXT, 0.3, gap))
        live = {"policy": {"name": "disco-d", "budget": share}, "regime": "device-constrained"}
        stack = Stack(cloud, phone, live=live)
        for rush in (20, 80):
            answers = await asyncio.gather(*(stack.stream() for _ in range(rush)))
            assert {answer.text for answer in answers} == {TEXT}
        assert phone.calls
        # In prompts: the deepest debt of hedges, that of races, and the one that was still affordable.
        assert stack.state.budget.spent_share <= share + (15 + 2 + 1) / 100

    run_virtual(main())


def test_a_full_house_is_told_when_to_come_back_and_the_rest_is_served() -> None:
    async def main() -> None:
        stack = Stack(ScriptedEndpoint(CLOUD, words(TEXT, 0.2, 0.05)), router={"max_streams": 4})
        answers = await asyncio.gather(*(stack.ask(stream=True) for _ in range(10)))
        assert sorted(answer.status for answer in answers) == [200] * 4 + [429] * 6
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers if answer.status == 429)
        assert all(answer.error["retryable"] for answer in answers if answer.status == 429)

    run_virtual(main())
