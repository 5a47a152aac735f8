"""The stream service over replicas in this process, on virtual time: plans, pins, budget, learning, spans."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from serve_app.core.errors import AccessDenied, DiscoError, InvalidRequest, PromptTooLong, UnknownModel
from serve_app.core.estimates import Seen
from serve_app.core.model import Pin, TextPrompt, TokenPrompt
from serve_app.settings import TelemetrySettings
from serve_app.streams import Grant
from serve_app.telemetry import Telemetry
from tests.support.local_service import LocalService, local_service
from tests.support.moving import LIVE
from tests.support.virtual_loop import run_virtual

CANARY = "canary-5d1c"


def simulated(kind: str, overhead: float, **engine: Any) -> dict[str, Any]:
    return {"kind": kind, "slots": 2, "engine": {"type": "simulated", "seed": 3, "overhead": overhead, **engine}}


#: The phone is quick and dear, the cloud slow and cheap.
ARGS: dict[str, Any] = {
    "endpoints": {"cloud": simulated("cloud", 0.4, can_park=False), "phone": simulated("device", 0.05)},
    "models": {"disco": {}, "cloud-model": {"endpoints": ["cloud"]}},
}


def serve(play: Any, live: dict[str, Any] = LIVE, args: dict[str, Any] = ARGS) -> Any:
    async def main() -> Any:
        return await play(await local_service(args, live))

    return run_virtual(main())


def refusal(args: dict[str, Any] = ARGS, **fields: Any) -> DiscoError:
    async def play(local: LocalService) -> DiscoError:
        with pytest.raises(DiscoError) as refused:
            await local.ask(5, 0, **fields)
        return refused.value

    return serve(play, args=args)


def test_a_race_is_won_by_the_phone_and_moved_to_the_cloud_without_a_seam() -> None:
    async def play(local: LocalService) -> None:
        moved, outcome = await local.ask(5, 0)
        alone, _ = await local.ask(5, 0, pin=Pin.DEVICE_ONLY)
        assert outcome.report["winner"] == "phone"
        assert [leg["reason"] for leg in outcome.report["legs"]] == ["dispatch", "dispatch", "migration"]
        assert [(m["from"], m["to"], m["outcome"]) for m in outcome.report["migrations"]] == [
            ("phone", "cloud", "completed")
        ]
        assert moved == alone
        assert outcome.report["delay_num"] == 0
        assert outcome.report["cost_usd"] == pytest.approx(sum(leg["cost_usd"] for leg in outcome.report["legs"]))

    serve(play)


@pytest.mark.parametrize(("pin", "endpoint"), [(Pin.DEVICE_ONLY, "phone"), (Pin.CLOUD_ONLY, "cloud")])
def test_a_pin_is_never_broken(pin: Pin, endpoint: str) -> None:
    async def play(local: LocalService) -> set[str]:
        _, outcome = await local.ask(5, 0, pin=pin)
        return {leg["endpoint"] for leg in outcome.report["legs"]}

    assert serve(play) == {endpoint}


def test_named_endpoints_are_never_left() -> None:
    async def play(local: LocalService) -> tuple[list[str], set[str]]:
        report = (await local.ask(5, 0, endpoints=("phone",)))[1].report
        return report["eligible"], {leg["endpoint"] for leg in report["legs"]}

    assert serve(play) == (["phone"], {"phone"})


def test_what_a_key_allows_is_never_left_and_the_report_names_the_key() -> None:
    async def play(local: LocalService) -> dict[str, Any]:
        return (await local.ask(5, 0, grant=Grant("alice", Pin.DEVICE_ONLY)))[1].report

    report = serve(play)
    assert (report["key"], report["eligible"], {leg["endpoint"] for leg in report["legs"]}) == (
        "alice",
        ["phone"],
        {"phone"},
    )
    denied = refusal(grant=Grant("alice", Pin.DEVICE_ONLY), model="cloud-model")
    assert isinstance(denied, AccessDenied)


def test_a_request_may_forbid_migration() -> None:
    async def play(local: LocalService) -> list[Any]:
        return list((await local.ask(5, 0, migrate=False))[1].report["migrations"])

    assert serve(play) == []


def test_an_unknown_model_and_an_impossible_pin_are_refused() -> None:
    assert isinstance(refusal(model="nope"), UnknownModel)
    pinned = refusal(model="cloud-model", pin=Pin.DEVICE_ONLY)
    assert isinstance(pinned, InvalidRequest)
    assert pinned.param == "disco.pin"
    for wishes in ({"endpoints": ("nobody",)}, {"endpoints": ("phone",), "pin": Pin.CLOUD_ONLY}):
        named = refusal(**wishes)
        assert (isinstance(named, InvalidRequest), getattr(named, "param", None)) == (True, "disco.endpoints")
        assert "it may use " in str(named)


def test_a_prompt_longer_than_every_context_is_refused() -> None:
    args = {
        "endpoints": {
            "cloud": simulated("cloud", 0.1, context_length=64),
            "phone": simulated("device", 0.1, context_length=32),
        }
    }
    assert isinstance(refusal(args, prompt=TextPrompt("word " * 100)), PromptTooLong)


def test_token_ids_go_only_to_endpoints_of_one_vocabulary() -> None:
    args = {"endpoints": {"cloud": simulated("cloud", 0.4, vocabulary="x"), "phone": simulated("device", 0.05)}}

    async def play(local: LocalService) -> set[str]:
        _, outcome = await local.ask(5, 0, prompt=TokenPrompt((60, 61, 62)))
        assert outcome.report["prompt_tokens_estimated"] == outcome.report["prompt_tokens"] == 3
        return {leg["endpoint"] for leg in outcome.report["legs"]}

    assert serve(play, args=args) == {"cloud"}


def test_the_estimate_of_a_prompt_learns_from_the_counts() -> None:
    async def play(local: LocalService) -> None:
        errors = []
        for number in range(40):
            _, outcome = await local.ask(12, number, max_tokens=2)
            errors.append(abs(outcome.report["prompt_tokens_estimated"] - outcome.report["prompt_tokens"]))
        assert errors[-1] < errors[0] / 2

    serve(play)


def test_a_race_settles_its_reservation_at_the_first_token() -> None:
    async def play(local: LocalService) -> None:
        budget = local.service._state.budget
        stream = local.service.open(local.request(5, 0))
        await stream.started()
        assert budget.spent > 0
        await stream.aclose()
        assert budget.spent == stream.outcome.report["legs"][1]["prefill_tokens"]

    serve(play)


def test_a_spent_budget_leaves_the_unconstrained_side() -> None:
    async def play(local: LocalService) -> set[str]:
        outcomes = [(await local.ask(5, number))[1] for number in range(3)]
        return {leg["endpoint"] for outcome in outcomes for leg in outcome.report["legs"]}

    assert serve(play, live=LIVE | {"policy": {"budget": 0.0}}) == {"cloud"}


def test_the_planner_learns_ttfts_and_rates_while_serving() -> None:
    async def play(local: LocalService) -> None:
        planner = local.service._state.planner
        for number in range(40):
            await local.ask(5, number, pin=Pin.CLOUD_ONLY, consumption_rate=None)
            await asyncio.sleep(1)
        learnt = planner.profile("cloud")
        assert learnt.decode_rate == pytest.approx(50, rel=0.1)
        assert learnt.expected_ttft(50) == pytest.approx(0.4 + 50 / 2000 + 1 / 50, rel=0.1)

    prior_is_wrong = {"endpoints": {"cloud": simulated("cloud", 0.4), "phone": simulated("device", 0.05)}}
    serve(play, args=prior_is_wrong)


def test_a_server_that_had_not_spoken_when_the_answer_was_over_was_at_least_that_slow() -> None:
    async def play(local: LocalService) -> None:
        estimates = local.service._state.planner.estimates
        _, outcome = await local.ask(5, 0, migrate=False)
        cloud = next(leg for leg in outcome.report["legs"] if leg["endpoint"] == "cloud")
        assert (cloud["outcome"], cloud["ttft_s"]) == ("lost", None)
        (seen,) = [one for one in estimates.drain() if one.endpoint == "cloud" and one.what is not Seen.DECODED]
        assert seen.what is Seen.NO_TOKEN
        assert outcome.report["ttft_s"] < seen.seconds < 100

    never = {"endpoints": {"cloud": simulated("cloud", 500.0), "phone": simulated("device", 0.05)}}
    serve(play, args=never)


@pytest.mark.parametrize("leave_after", [0, 1, 5])
def test_a_client_that_leaves_stops_every_leg(leave_after: int) -> None:
    async def play(local: LocalService) -> None:
        stream = local.service.open(local.request(5, 0))
        for _ in range(leave_after):
            await anext(stream)
        await stream.aclose()
        await asyncio.sleep(0.001)
        assert not any(endpoint.replica._legs for endpoint in local.endpoints.values())

    serve(play)


def test_one_trace_with_a_span_for_the_request_each_leg_and_each_engine() -> None:
    exporters = [InMemorySpanExporter() for _ in range(3)]

    async def play(local: LocalService) -> None:
        owners = (local.service, *(endpoint.replica for endpoint in local.endpoints.values()))
        for owner, exporter in zip(owners, exporters, strict=True):
            owner._telemetry = Telemetry(TelemetrySettings(), "test", exporter)
        parent = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
        _, outcome = await local.ask(5, 0, trace=parent, prompt=TextPrompt(CANARY), grant=Grant("alice"))
        assert len(outcome.report["legs"]) == 3
        for owner in owners:
            owner._telemetry.shutdown()

    serve(play)
    spans: list[ReadableSpan] = [span for exporter in exporters for span in exporter.get_finished_spans()]
    assert {format(span.context.trace_id, "032x") for span in spans} == {"0af7651916cd43dd8448eb211c80319c"}
    names = sorted(span.name.split()[0] + " " + str(span.kind.name) for span in spans)
    work = ["decode INTERNAL"] * 3 + ["generate SERVER"] * 3 + ["handoff INTERNAL"]
    phases = ["prefill INTERNAL"] * 3 + ["queue INTERNAL"] * 3
    assert names == work + phases + ["text_completion CLIENT"] * 3 + ["text_completion INTERNAL"]
    (root,) = [span for span in spans if span.name == "text_completion disco"]
    attributes = dict(root.attributes or {})
    assert attributes["gen_ai.request.model"] == "disco"
    assert attributes["gen_ai.usage.output_tokens"]
    assert attributes["disco.migrations"] == 1
    assert attributes["disco.key"] == "alice"
    assert CANARY not in "".join(span.to_json() for span in spans)
