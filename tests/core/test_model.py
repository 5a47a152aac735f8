"""The values that cross process borders survive it unchanged."""

from __future__ import annotations

import pickle
from array import array

import pytest

from serve_app.core.model import (
    ChatPrompt,
    EndpointInfo,
    EndpointKind,
    FinishReason,
    GenerationRequest,
    Handoff,
    Message,
    Pace,
    Pin,
    Receipt,
    Sampling,
    TokenChunk,
)


@pytest.mark.parametrize(
    "value",
    [
        TokenChunk(3, "é", (1, 2), 2, 1, FinishReason.PAUSED, 0.25),
        TokenChunk(0, ""),
        Receipt(None, 0.5, 3, "host:1"),
        EndpointInfo("a", EndpointKind.DEVICE, "m", 10),
        GenerationRequest(
            "r-0-a",
            ChatPrompt((Message("user", "x"),), "pre"),
            Sampling(5),
            Handoff("text", 2, array("i", (7, 8)).tobytes()),
            Pace(4.8),
            trace={"traceparent": "00"},
        ),
    ],
)
def test_pickling_loses_nothing(value: object) -> None:
    assert pickle.loads(pickle.dumps(value)) == value


def test_packed_ids_come_back() -> None:
    assert Handoff("", 2, array("i", (7, 70_000)).tobytes()).token_ids == (7, 70_000)
    assert Handoff("text", 2).token_ids is None


def test_a_pin_is_a_promise_about_one_kind() -> None:
    assert {pin: pin.kind for pin in Pin} == {
        Pin.DEVICE_ONLY: EndpointKind.DEVICE,
        Pin.CLOUD_ONLY: EndpointKind.CLOUD,
    }
