"""What metrics and spans say about time: the first token that can be read, not the first sign of life."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from actors.replica import EndpointReplica
from serve_app.core.model import GenerationRequest, Sampling, TextPrompt, TokenChunk
from serve_app.settings import EndpointSettings, TelemetrySettings
from serve_app.telemetry import Telemetry
from tests.support.prometheus import value
from tests.support.scripted import Raw, ScriptedEndpoint, words
from tests.support.scripted_service import Stack
from tests.support.session_stage import CLOUD, PHONE
from tests.support.traced import seconds
from tests.support.virtual_loop import run_virtual

TEXT = "abcdefghij"


def traced(*endpoints: ScriptedEndpoint, **settings: Any) -> tuple[Stack, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    return Stack(*endpoints, exporter=exporter, telemetry=settings), exporter


def test_the_first_token_is_the_first_content() -> None:
    async def main() -> None:
        role = (0.0, Raw(TokenChunk(0, "", count=0)))
        stack = Stack(ScriptedEndpoint(CLOUD, [role, (0.3, "a"), *words(TEXT[1:], 0.05, 0.05)]))
        report = (await stack.stream()).report
        assert report["ttft_s"] == pytest.approx(0.3)
        shown = stack.surface.metrics.render().decode()
        assert value(shown, "gen_ai_server_time_to_first_token_seconds_count") == 1
        assert value(shown, "gen_ai_server_time_to_first_token_seconds_sum") == pytest.approx(0.3)

    run_virtual(main())


def test_received_and_shown_are_two_times() -> None:
    """A possible stop string holds the first tokens back: the endpoint was quick, the reader waited."""

    async def main() -> None:
        stack = Stack(ScriptedEndpoint(CLOUD, [(0.2, "E"), (0.5, "N"), (0.5, "x")]))
        report = (await stack.stream(stop="END")).report
        assert report["legs"][0]["ttft_s"] == pytest.approx(0.2)
        assert report["ttft_s"] == pytest.approx(1.2)

    run_virtual(main())


@pytest.mark.parametrize("tokens", [10, 200])
def test_spans_do_not_grow_with_the_answer_and_last_as_long_as_the_stream(tokens: int) -> None:
    async def main() -> None:
        stack, exporter = traced(ScriptedEndpoint(CLOUD, words("x" * tokens, 0.01, 0.0005)))
        began = asyncio.get_running_loop().time()
        await stack.stream(max_tokens=500)
        lasted = asyncio.get_running_loop().time() - began
        stack.telemetry.shutdown()
        spans = exporter.get_finished_spans()
        assert len(spans) == 3, "the HTTP call, the answer and its leg"
        root = next(span for span in spans if span.parent is None)
        assert [seconds(root), *map(seconds, spans)] == pytest.approx([lasted] * 4, abs=1e-6)

    run_virtual(main())


def test_every_request_has_a_trace_of_its_own_unless_told_otherwise() -> None:
    async def main() -> None:
        legs = ScriptedEndpoint(CLOUD, words(TEXT, 0.1, 0.05)), ScriptedEndpoint(PHONE, words(TEXT, 0.1, 0.05))
        stack, exporter = traced(*legs)
        await asyncio.gather(*(stack.stream() for _ in range(10)))
        stack.telemetry.shutdown()
        spans = exporter.get_finished_spans()
        assert len({span.context.trace_id for span in spans}) == 10  # type: ignore[union-attr]
        by_id = {span.context.span_id: span for span in spans}  # type: ignore[union-attr]
        for span in spans:
            if span.parent is not None:
                assert by_id[span.parent.span_id].context.trace_id == span.context.trace_id  # type: ignore[union-attr]

    assert TelemetrySettings().sampling == 1.0
    run_virtual(main())


def test_a_replica_that_goes_exports_its_last_span() -> None:
    async def main() -> None:
        exporter = InMemorySpanExporter()
        settings = EndpointSettings.model_validate({"kind": "device", "engine": {"type": "simulated"}})
        replica = EndpointReplica("phone", settings)
        replica._telemetry = Telemetry(TelemetrySettings(), "endpoint", exporter)
        request = GenerationRequest("r-0-phone", TextPrompt("Hi"), Sampling(3))
        assert [batch async for batch in replica.generate(request)]
        replica.__del__()
        assert {span.name for span in exporter.get_finished_spans()} >= {"generate phone", "decode"}

    run_virtual(main())
