"""The OpenAPI document is true: what it allows is served, what it forbids is refused, and nothing else is answered."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.openapi import from_asgi
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance
from starlette.applications import Starlette
from starlette.routing import Route

from serve_app.ingress import build_http_app
from serve_app.keys import sha256_of
from tests.http.fakes import CHAT, COMPLETIONS, make_surface, serving
from tests.support.effort import examples
from tests.support.scripted import ScriptedEndpoint, words
from tests.support.scripted_service import Stack
from tests.support.session_stage import CLOUD, PHONE

KEY = "sk-disco-open-sesame"
KEYS = {"keys": {"alice": {"sha256": sha256_of(KEY.encode())}}}

#: What the document's schemas cannot express, by the field that a refusal names: rules over several fields, and
#: the last few of 2**63 numbers, which are one to those who calculate with floats.
BEYOND_SCHEMAS = {
    "seed": "must be",
    "max_tokens": "differs from max_completion_tokens",
    "stream_options": "only allowed when stream is true",
    "add_generation_prompt": "",
    "continue_final_message": "the last message",
    "messages": "nothing comes before the message to be continued",
    "disco.endpoints": "",
    "disco.events": "only allowed when stream is true",
}


#: A request that fails is told as it is: making it smaller takes minutes.
HASTY = {"suppress_health_check": list(HealthCheck), "phases": [Phase.explicit, Phase.generate]}


def app(**access: Any) -> Starlette:
    """The whole service over two endpoints that answer at once."""
    made = [ScriptedEndpoint(info, words("abc", 0.0, 0.0)) for info in (CLOUD, PHONE)]
    return Stack(*made, access=access or {"open": True}).http


def test_every_route_is_described_and_nothing_else() -> None:
    async def scenario() -> dict[str, Any]:
        async with serving() as server:
            return (await server.client.get("/openapi.json")).json()["paths"]  # type: ignore[no-any-return]

    described = {path: set(methods) & {"get", "post", "patch"} for path, methods in asyncio.run(scenario()).items()}
    routes = {
        re.sub(r":\w+}", "}", route.path): {method.lower() for method in route.methods - {"HEAD"}}
        for route in build_http_app(make_surface()).routes
        if isinstance(route, Route) and route.methods and route.include_in_schema
    }
    assert described == routes


def test_it_is_for_those_who_may_use_the_api() -> None:
    async def scenario() -> None:
        async with serving(access=KEYS) as server:
            assert (await server.client.get("/openapi.json")).status_code == 401
            answer = await server.client.get("/openapi.json", headers={"authorization": f"Bearer {KEY}"})
            assert answer.json()["security"] == [{"key": []}]
        async with serving(live={"limits": {"max_tokens": 77}}) as server:
            document = (await server.client.get("/openapi.json")).json()
            assert "security" not in document
            body = document["components"]["schemas"]["ChatBody"]["properties"]
            assert (body["model"], body["max_tokens"]["maximum"]) == ({"enum": ["disco"]}, 77)

    asyncio.run(scenario())


CASES = {
    (path, mode): from_asgi("/openapi.json", app())[path]["POST"].as_strategy(generation_mode=mode)
    for path in (CHAT, COMPLETIONS)
    for mode in GenerationMode
}


def judge(case: Case) -> int:
    """The status. Raises where the answer is none that the document promises, or tells of a fault."""
    response = case.call()
    assert "Traceback" not in response.text
    excluded = [positive_data_acceptance]
    if response.status_code == 413:
        # What it forbids was too large to be looked at.
        excluded.append(negative_data_rejection)
    case.validate_response(response, excluded_checks=excluded)
    if response.status_code == 400 and case.meta and case.meta.generation.mode is GenerationMode.POSITIVE:
        error = response.json()["error"]
        assert error["param"] in BEYOND_SCHEMAS, "the document allows it"
        assert BEYOND_SCHEMAS[error["param"]] in error["message"]
    return response.status_code


@pytest.mark.parametrize("mode", list(GenerationMode), ids=["allowed", "forbidden"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_what_the_document_allows_is_served_and_what_it_forbids_is_refused(path: str, mode: GenerationMode) -> None:
    statuses: Counter[int] = Counter()

    @settings(max_examples=examples(30, 2500), **HASTY)  # type: ignore[arg-type]
    @given(case=CASES[path, mode])
    def ask(case: Case) -> None:
        statuses[judge(case)] += 1

    ask()
    assert statuses[200 if mode is GenerationMode.POSITIVE else 400] > statuses.total() // 4


@settings(max_examples=examples(10, 300), **HASTY)  # type: ignore[arg-type]
@given(st.data())
def test_every_other_path_answers_as_the_document_says(data: st.DataObject) -> None:
    operations = [found.ok() for found in from_asgi("/openapi.json", app()).get_all_operations()]
    operation = data.draw(st.sampled_from([one for one in operations if one.method.upper() == "GET"]))
    judge(data.draw(operation.as_strategy()))
