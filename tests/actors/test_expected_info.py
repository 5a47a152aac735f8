"""What is known of an endpoint before its engine was asked, and what the engine's word adds."""

from __future__ import annotations

from typing import Any

import pytest

from actors.engines.base import EngineInfo
from actors.handles import described, expected_info
from serve_app.settings import EndpointSettings


def settings(**placement: Any) -> EndpointSettings:
    return EndpointSettings.model_validate(
        {"kind": "device", "engine": {"type": "simulated"}, "slots": 2, "placement": placement}
    )


@pytest.mark.parametrize(
    ("placement", "parks"),
    [({}, True), ({"replicas": 1, "max_replicas": 1}, True), ({"replicas": 2}, False), ({"max_replicas": 4}, False)],
)
def test_only_a_sole_replica_is_asked_to_keep_a_prefill_for_a_later_call(
    placement: dict[str, int], parks: bool
) -> None:
    engine = EngineInfo("m", 64, None, can_park=True)
    assert described(expected_info("phone", settings(**placement)), engine).can_park is parks


def test_no_replica_keeps_what_its_engine_cannot() -> None:
    engine = EngineInfo("m", 64, None, can_park=False)
    assert not described(expected_info("phone", settings()), engine).can_park
