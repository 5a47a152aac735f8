"""A cloud over HTTP in the shipped configuration, and streams that move between servers: the whole stack but Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from serve_app.core.errors import EndpointTimeout, EndpointUnavailable
from serve_app.core.model import Pin
from serve_app.streams import Outcome
from tests.engines.fake_openai import FakeServer
from tests.engines.scripted_http import Act, ScriptedServer, answer, delta, hung_up, page, refusal, silent, stream
from tests.support.local_service import local_service, read_config

TEXT = "Sunlight meets the air. Naïve or not 漢字 👩‍👧, blue\n\nlight  scatters most. " * 2


def far(url: str, kind: str, **engine: Any) -> dict[str, Any]:
    fixed = {"type": "openai_http", "model": "fake", "warm_up": False, "retry_seconds": 0.0}
    return {"kind": kind, "slots": 4, "engine": fixed | {"base_url": url, **engine}}


async def ask(
    endpoints: Mapping[str, Any], live: Mapping[str, Any], max_tokens: int = 400, **fields: Any
) -> tuple[str, Outcome]:
    local = await local_service({"endpoints": dict(endpoints)}, {"reader": {"consumption_rate": 200.0}} | dict(live))
    try:
        return await local.ask(8, 1, max_tokens, **fields)
    finally:
        for endpoint in local.endpoints.values():
            await endpoint.replica.close()


def test_the_shipped_configuration_serves_with_a_key_and_a_cloud(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-any")
    args, live = read_config("openai.yaml")
    fake = FakeServer(TEXT[:90])

    async def main() -> None:
        async with fake.running() as url:
            args["endpoints"]["cloud"]["engine"]["base_url"] = url
            args["endpoints"]["laptop"]["engine"] = {"type": "simulated"}
            local = await local_service(args, live)
            text, outcome = await local.ask(8, 1, 400, pin=Pin.CLOUD_ONLY)
            assert text == fake.text
            assert outcome.report["winner"] == "cloud"
            assert outcome.report["cost_exact"] is False
            assert not outcome.usage.exact
            for endpoint in local.endpoints.values():
                await endpoint.replica.close()

    asyncio.run(main())
    assert all(body["model"] == "gpt-4o-mini" for body in fake.streamed())


#: The device answers at once and is dear, the cloud writes the same text for less: streams move.
MOVES = {
    "policy": {"name": "device-only"},
    "reader": {"consumption_rate": 20.0},
    "prices": {
        "endpoints": {
            "phone": {"input_usd_per_mtok": 100.0, "output_usd_per_mtok": 1000.0},
            "cloud": {"input_usd_per_mtok": 0.1, "output_usd_per_mtok": 0.1},
        }
    },
}


@pytest.mark.parametrize("how", ["ids", "prefill", "trailing"])
def test_a_planned_move_between_two_servers_leaves_no_seam(how: str) -> None:
    one, two = (FakeServer(TEXT, ids=how == "ids", continues=[how]) for _ in range(2))

    async def main() -> None:
        async with one.running() as phone, two.running() as cloud:
            shared = {"vocabulary": "bytes"} if how == "ids" else {}
            endpoints = {
                "phone": far(phone, "device", continues_by=how, **shared),
                "cloud": far(cloud, "cloud", continues_by=how, **shared),
            }
            text, outcome = await ask(endpoints, MOVES)
            assert text == TEXT
            assert [leg["outcome"] for leg in outcome.report["legs"]] == ["handed_over", "completed"]
            (move,) = outcome.report["migrations"]
            written = TEXT.encode() if how == "ids" else TEXT
            assert two.prompts[-1].endswith(f"assistant\n{_text(written[: move['at_token']])}")

    asyncio.run(main())


def _text(written: str | bytes) -> str:
    return written if isinstance(written, str) else written.decode()


CUT = [delta(character) for character in TEXT[:30]]


@pytest.mark.parametrize("how", ["prefill", "trailing"])
@pytest.mark.parametrize(
    "act",
    [
        stream(*CUT, cut=True),
        stream(*CUT),
        stream(*CUT, {"error": {"message": "oh"}}),
        stream(*CUT, "{"),
        stream(*CUT, hang=True),
    ],
)
def test_an_answer_that_breaks_off_is_carried_on_by_another_server(act: Act, how: str) -> None:
    broken, sound = ScriptedServer([act]), FakeServer(TEXT, continues=[how])

    async def main() -> None:
        async with broken.running() as first, sound.running() as second:
            endpoints = {
                "cloud": far(first, "cloud", continues_by="nothing", idle_seconds=0.1),
                "spare": far(second, "device", continues_by=how),
            }
            live = {"policy": {"budget": 0.0}, "migration": {"mode": "off"}, "regime": "device-constrained"}
            text, outcome = await ask(endpoints, live)
            assert text == TEXT
            assert [leg["outcome"] for leg in outcome.report["legs"]] == ["failed", "completed"]
            assert outcome.report["migrations"][0]["at_token"] == len(CUT)

    asyncio.run(main())
    assert sound.prompts[-1].endswith(f"assistant\n{TEXT[:30]}")


@pytest.mark.parametrize(
    "act", [refusal(401), refusal(404), refusal(429, retry_after="9"), page(), hung_up, stream(), stream("[DONE]")]
)
def test_a_server_that_fails_at_once_costs_nobody_an_answer(act: Act) -> None:
    async def main() -> None:
        async with ScriptedServer([act]).running() as first, FakeServer(TEXT).running() as second:
            endpoints = {"cloud": far(first, "cloud", continues_by="nothing"), "spare": far(second, "device")}
            live = {"policy": {"budget": 0.0}, "regime": "device-constrained"}
            text, outcome = await ask(endpoints, live)
            assert text == TEXT
            assert outcome.report["winner"] == "spare"

    asyncio.run(main())


def test_a_pin_is_not_broken_by_a_silent_server() -> None:
    async def main() -> None:
        server = ScriptedServer([answer("ok"), silent])
        async with server.running() as first, FakeServer(TEXT).running() as second:
            endpoints = {
                "cloud": far(first, "cloud", continues_by="nothing", first_token_seconds=0.1, warm_up=True),
                "spare": far(second, "device", continues_by="nothing"),
            }
            with pytest.raises(EndpointTimeout, match="did not answer in time"):
                await ask(endpoints, {}, pin=Pin.CLOUD_ONLY)

    asyncio.run(main())


def test_without_its_key_an_endpoint_is_not_ready_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)

    async def main() -> None:
        endpoints = {"cloud": far("https://127.0.0.1:9/v1", "cloud", api_key_env="SOME_KEY")}
        with pytest.raises(EndpointUnavailable, match="SOME_KEY is not set"):
            await ask(endpoints, {})

    asyncio.run(main())
