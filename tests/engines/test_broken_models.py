"""Model files that cannot be served: the cause is told, and another endpoint serves where the pin allows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from actors.engines.models import fetch
from actors.handles import expected_info
from actors.hosted import HostedEndpoint
from actors.replica import EndpointReplica
from serve_app.core.errors import EndpointUnavailable
from serve_app.core.model import EndpointKind
from serve_app.engine_settings import LlamaCppEngineSettings
from serve_app.settings import EndpointSettings
from tests.support.gguf import STRING, context, header, pair, text
from tests.support.scripted import ScriptedEndpoint, words
from tests.support.scripted_service import Stack
from tests.support.session_stage import CLOUD

pytestmark = pytest.mark.llama

#: Past the header, amid the weights.
HALF_WAY = 20 << 20


def cut_short(path: Path) -> None:
    with fetch("smollm2-135m-instruct", lambda line: None).open("rb") as whole:
        path.write_bytes(whole.read(HALF_WAY))


def another_format(path: Path) -> None:
    path.write_bytes(b"PK\x03\x04" + bytes(4096))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def unknown_architecture(path: Path) -> None:
    path.write_bytes(header(pair("general.architecture", STRING, text("nonesuch")), context(512, "nonesuch")))


@pytest.mark.parametrize("make", [cut_short, another_format, empty, unknown_architecture])
def test_the_cause_is_in_the_log_and_the_report_and_another_endpoint_serves(
    make: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "model.gguf"
    make(path)
    settings = EndpointSettings(kind=EndpointKind.DEVICE, engine=LlamaCppEngineSettings(model=str(path)))
    cause = "cannot load model.gguf; is it a whole GGUF file"

    async def main() -> None:
        laptop = HostedEndpoint(expected_info("laptop", settings), EndpointReplica("laptop", settings))
        with pytest.raises(EndpointUnavailable, match=cause):
            await laptop.describe()
        stack = Stack(
            ScriptedEndpoint(CLOUD, words("abc", 0.01, 0.0)),
            laptop,  # type: ignore[arg-type]
            live={"policy": {"name": "device-only"}},
        )
        answer = await stack.stream()
        assert answer.text == "abc"
        first, second = answer.report["legs"]
        assert (first["endpoint"], first["outcome"], first["error"]) == ("laptop", "failed", "endpoint_unavailable")
        assert cause in first["cause"]
        assert second["outcome"] == "completed"
        pinned = await stack.ask(disco={"pin": "device_only"})
        assert (pinned.status, pinned.error["code"]) == (503, "endpoint_unavailable")
        assert cause in pinned.error["message"]

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert f"laptop cannot serve: engine.model: llama.cpp {cause}" in caplog.text
    assert "laptop failed: engine.model" in caplog.text
