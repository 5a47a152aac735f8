"""What a trace tells of a request: over HTTP surface, service and replicas, on virtual time."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes, http_attributes
from opentelemetry.trace import StatusCode

from tests.support.prometheus import value
from tests.support.traced import Trace, TracedService, attributes, event, names, seconds
from tests.support.virtual_loop import run_virtual
from tests.test_service import ARGS, LIVE, simulated

CANARY = "canary-77ab"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ASK: dict[str, Any] = {"stream": True, "messages": [{"role": "user", "content": CANARY}], "max_tokens": 60}
#: Many at once, as fast as they can.
WIDE = {"endpoints": {name: each | {"slots": 64} for name, each in ARGS["endpoints"].items()}}


def traced(play: Any, args: dict[str, Any] = ARGS, live: dict[str, Any] = LIVE) -> Trace:
    async def main() -> Trace:
        service = await TracedService.start(args, live)
        await play(service)
        return service.spans()

    return run_virtual(main())


def moved() -> Trace:
    """The phone wins a race with the cloud and hands over to it."""

    async def play(service: TracedService) -> None:
        answer = await service.ask(headers={"traceparent": PARENT}, **ASK)
        assert answer.status == 200

    return traced(play)


def test_a_request_that_moved_is_one_trace_of_known_spans() -> None:
    trace = moved()
    assert [f"{each:032x}" for each in trace.traces()] == ["0af7651916cd43dd8448eb211c80319c"]
    server = trace.one("POST /v1/chat/completions")
    assert f"{server.parent.span_id:016x}" == "b7ad6b7169203331"  # type: ignore[union-attr]
    (request,) = trace.children(server)
    assert request.name == "chat disco"
    assert names(trace.children(request)) == ["chat cloud", "chat cloud", "chat phone", "handoff"]
    for engine in trace.named("generate cloud") + trace.named("generate phone"):
        assert names(trace.children(engine))[-2:] == ["prefill", "queue"]
    assert names(trace.children(trace.one("generate phone"))) == ["decode", "prefill", "queue"]
    assert all(span.end_time for span in trace.spans)
    assert {str(span.resource.attributes["service.name"]) for span in trace.spans} == {
        "disco-router",
        "disco-endpoint-cloud",
        "disco-endpoint-phone",
    }


def test_every_leg_is_linked_to_the_winner_and_the_handoff_to_its_legs() -> None:
    trace = moved()
    winner = trace.one("chat phone")
    lost, target = sorted(trace.named("chat cloud"), key=lambda span: span.start_time or 0)
    assert attributes(winner)["disco.leg.won"] is True
    assert not winner.links
    for leg in (lost, target):
        (link,) = leg.links
        assert link.context == winner.get_span_context()
        assert dict(link.attributes or {}) == {"disco.link": "winner"}
        assert attributes(leg)["disco.leg.won"] is False
    linked = {str((link.attributes or {})["disco.link"]): link.context for link in trace.one("handoff").links}
    assert linked == {"source": winner.get_span_context(), "target": target.get_span_context()}


def test_the_handoff_lasts_from_the_trigger_to_the_targets_first_token() -> None:
    trace = moved()
    handoff, target = trace.one("handoff"), max(trace.named("chat cloud"), key=lambda span: span.start_time or 0)
    told = attributes(handoff)
    assert (told["disco.handoff.source"], told["disco.handoff.target"]) == ("phone", "cloud")
    assert (told["disco.handoff.outcome"], told["disco.handoff.reason"]) == ("completed", "migration")
    assert told["disco.verdict"] == "go"
    assert told["disco.lead"] >= told["disco.buffer_needed"] > 0
    assert handoff.start_time == target.start_time
    assert handoff.end_time == event(target, "disco.first_token.received").timestamp
    assert event(handoff, "disco.handoff.accepted")


def test_the_engine_tells_queue_prefill_and_decode() -> None:
    """One slot: the second request waits for the first."""
    one = {"endpoints": {"phone": simulated("device", 0.5, decode_rate=10) | {"slots": 1}}}

    async def play(service: TracedService) -> None:
        await asyncio.gather(*(service.ask(**ASK | {"max_tokens": 10}) for _ in range(2)))

    trace = traced(play, one)
    first, second = sorted(trace.named("generate phone"), key=lambda span: span.end_time or 0)
    phases = {span.name: span for span in trace.children(second)}
    assert seconds(phases["queue"]) == pytest.approx(seconds(first), abs=1e-3)
    assert seconds(phases["prefill"]) > 0.5
    assert seconds(phases["decode"]) == pytest.approx(0.9, abs=1e-3)
    assert phases["queue"].start_time == second.start_time
    assert phases["queue"].end_time == phases["prefill"].start_time
    assert phases["prefill"].end_time == phases["decode"].start_time
    assert attributes(second)["disco.tokens"] == 10


def test_received_and_delivered_are_two_events() -> None:
    """A possible stop string holds the first tokens back from the client."""

    async def play(service: TracedService) -> None:
        first = (await service.ask(**ASK)).text.split()[0]
        await service.ask(**ASK | {"stop": f" {first} and something else"})

    trace = traced(play)
    _, server = sorted(trace.named("POST /v1/chat/completions"), key=lambda span: span.start_time or 0)
    (request,) = trace.children(server)
    received, delivered = event(request, "disco.first_token.received"), event(server, "disco.first_token.delivered")
    assert delivered.timestamp - received.timestamp > 1e6
    told = attributes(request)["gen_ai.response.time_to_first_chunk"]
    assert received.timestamp - request.start_time == pytest.approx(told * 1e9, abs=2e3)
    assert attributes(server)["disco.time_to_first_token_delivered"] > told


def test_an_answer_in_one_piece_is_delivered_when_it_is_sent() -> None:
    async def play(service: TracedService) -> None:
        await service.ask(**ASK | {"stream": False})

    trace = traced(play)
    server, request = trace.one("POST /v1/chat/completions"), trace.one("chat disco")
    delivered = event(server, "disco.first_token.delivered")
    assert delivered.timestamp - event(request, "disco.first_token.received").timestamp > 0.5e9
    assert attributes(server)["gen_ai.request.stream"] is False


def test_decisions_are_events_with_their_verdicts() -> None:
    trace = moved()
    request = trace.one("chat disco")
    dispatch = dict(event(request, "disco.dispatch").attributes)
    assert dispatch["disco.policy"] == "disco-d*"
    assert dispatch["disco.launches"] == ["cloud", "phone"]
    assert len(dispatch["disco.delays"]) == 2
    assert dispatch["disco.reason"]
    verdicts = {e.attributes["disco.target"]: e for e in request.events if e.name == "disco.verdict"}
    assert {target: e.attributes["disco.verdict"] for target, e in verdicts.items()} == {
        "cloud": "go",
        "phone": "not_cheaper",
    }
    assert verdicts["cloud"].timestamp == trace.one("handoff").start_time


def test_names_are_the_conventions() -> None:
    trace = moved()
    known = {v for k, v in vars(gen_ai_attributes).items() if k.isupper() and isinstance(v, str)}
    known |= {v for k, v in vars(http_attributes).items() if k.isupper() and isinstance(v, str)}
    used = {name for span in trace.spans for name in attributes(span) if name.startswith(("gen_ai.", "http."))}
    assert used <= known
    request = attributes(trace.one("chat disco"))
    assert request["gen_ai.operation.name"] == "chat"
    assert request["gen_ai.provider.name"] == "disco"
    assert request["gen_ai.request.model"] == "disco"
    assert request["gen_ai.request.max_tokens"] == 60
    assert request["gen_ai.usage.output_tokens"] == 60
    assert request["gen_ai.usage.input_tokens"] > 0
    assert request["gen_ai.response.finish_reasons"] == ["length"]
    assert "error.type" not in request
    rest = {name for span in trace.spans for name in attributes(span)} - known
    assert {name.split(".")[0] for name in rest} == {"disco", "url"}


def test_no_text_of_prompt_or_answer_is_in_a_span() -> None:
    async def play(service: TracedService) -> None:
        answer = await service.ask(**ASK)
        told.append(answer.text)

    told: list[str] = []
    shown = "".join(span.to_json() for span in traced(play).spans)
    assert CANARY not in shown
    assert told[0][:20] not in shown


def test_a_refusal_is_a_span_that_tells_its_code() -> None:
    async def play(service: TracedService) -> None:
        assert (await service.ask(**ASK | {"temperature": 9})).status == 400
        assert (await service.ask(**ASK | {"model": "nope"})).status == 404

    bad, unknown = traced(play).spans
    assert attributes(bad)["http.response.status_code"] == 400
    assert attributes(bad)["error.type"] == "invalid_request"
    assert attributes(unknown)["error.type"] == "model_not_found"
    assert bad.status.status_code is StatusCode.UNSET, "the client's error, not the server's"


def test_a_failure_is_marked_where_it_happened() -> None:
    async def play(service: TracedService) -> None:
        async def breaks(_: Any) -> Any:
            raise RuntimeError(CANARY)
            yield

        service.local.endpoints["phone"].replica._engine.generate = breaks  # type: ignore[union-attr]
        assert (await service.ask(**ASK | {"disco": {"pin": "device_only"}})).status == 502

    trace = traced(play)
    for name in ("POST /v1/chat/completions", "chat disco"):
        span = trace.one(name)
        assert attributes(span)["error.type"] == "endpoint_fault"
        assert span.status.status_code is StatusCode.ERROR
    assert {attributes(span)["error.type"] for span in trace.named("generate phone")} == {"endpoint_fault"}
    assert CANARY not in "".join(span.to_json() for span in trace.spans)


@pytest.mark.parametrize("given", [True, False])
def test_fifty_requests_at_once_have_a_trace_each(given: bool) -> None:
    ids = [f"{number:032x}" for number in range(1, 51)]

    async def play(service: TracedService) -> None:
        headers = [{"traceparent": f"00-{each}-b7ad6b7169203331-01"} if given else {} for each in ids]
        answers = await asyncio.gather(*(service.ask(headers=each, **ASK) for each in headers))
        assert {answer.status for answer in answers} == {200}

    trace = traced(play, WIDE)
    found = trace.traces()
    assert len(found) == 50
    if given:
        assert {f"{each:032x}" for each in found} == set(ids)
    for spans in found.values():
        assert len({s.attributes["disco.request_id"] for s in spans if "disco.request_id" in attributes(s)}) == 1  # type: ignore[index]
        roots = [span for span in spans if span.parent is None or span.parent.span_id not in trace.by_id]
        assert names(roots) == ["POST /v1/chat/completions"]
        assert {str(s.resource.attributes["service.name"]) for s in spans} >= {"disco-router", "disco-endpoint-cloud"}


def test_a_long_answer_has_as_many_spans_and_events_as_a_short_one() -> None:
    def size(tokens: int) -> tuple[list[str], int]:
        async def play(service: TracedService) -> None:
            answer = await service.ask(**ASK | {"max_tokens": tokens, "disco": {"migrate": False}})
            assert answer.chunks[-1]["choices"][0]["finish_reason"] == "length"

        trace = traced(play, {"endpoints": {"phone": simulated("device", 0.2, output_tokens=[2000, 2000])}})
        return names(trace.spans), sum(len(span.events) for span in trace.spans)

    assert size(10) == size(1000)


def test_fifty_departures_leave_no_span_open_and_no_error_line(caplog: pytest.LogCaptureFixture) -> None:
    begun: list[Any] = []

    async def play(service: TracedService) -> None:
        for telemetry in service.telemetries:
            start = telemetry.tracer.start_span
            telemetry.tracer.start_span = lambda *a, start=start, **k: begun.append(start(*a, **k)) or begun[-1]  # type: ignore[method-assign, misc]
        now = asyncio.get_running_loop().time
        await asyncio.gather(*(service.ask(leave_at=now() + 0.02 * number, **ASK) for number in range(50)))
        await asyncio.sleep(10.0)

    with caplog.at_level(logging.WARNING):
        trace = traced(play, WIDE)
    assert caplog.records == []
    assert begun
    assert all(span.end_time for span in begun)
    outcomes = [attributes(span)["disco.outcome"] for span in trace.named("POST /v1/chat/completions")]
    assert len(outcomes) == 50
    assert "cancelled" in outcomes
    assert not [span for span in trace.spans if span.status.status_code is StatusCode.ERROR]


def test_histograms_count_every_request_of_two_hundred() -> None:
    shown: list[str] = []

    async def play(service: TracedService) -> None:
        for _ in range(4):
            await asyncio.gather(*(service.ask(**ASK | {"max_tokens": 20}) for _ in range(50)))
        shown.append(service.surface.metrics.render().decode())

    traced(play, WIDE, LIVE | {"policy": {"name": "paper"}})
    text = shown[0]
    for name in (
        "gen_ai_server_time_to_first_token_seconds",
        "gen_ai_server_time_per_output_token_seconds",
        "gen_ai_server_request_duration_seconds",
        "disco_time_to_first_token_delivered_seconds",
        "disco_qoe",
    ):
        assert value(text, f"{name}_count") == 200, name
    for token_type in ("input", "output"):
        assert value(text, "gen_ai_client_token_usage_count", gen_ai_token_type=token_type) == 200
    assert value(text, "disco_requests_total", code="ok") == value(text, "disco_wins_total") == 200
    received = value(text, "gen_ai_server_time_to_first_token_seconds_sum")
    assert value(text, "disco_time_to_first_token_delivered_seconds_sum") >= received > 0
