"""Shipped configurations with a real model, under Ray Serve. `disco up` starts ``simulated``, tests/vllm ``vllm``."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from aiohttp import web

from actors.engines.models import fetch
from serve_app.cli.configfile import load
from tests.conftest import RaySession
from tests.e2e.test_application import until
from tests.engines.fake_openai import FakeServer

pytestmark = [pytest.mark.ray, pytest.mark.llama]

KEY = "sk-only-in-the-environment"


@dataclass
class Service(FakeServer):
    """A commercial service that wants a key, without fields that it does not know."""

    strict: bool = True
    raw: bool = False
    refused: int = 0
    url: str = ""
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def _note(self, request: web.Request) -> dict[str, Any]:
        if request.headers.get("Authorization") != f"Bearer {KEY}":
            self.refused += 1
            raise web.HTTPUnauthorized
        return await super()._note(request)

    async def serve(self, ready: threading.Event) -> None:
        async with self.running() as self.url:
            ready.set()
            await self.over.wait()


@pytest.fixture
def cloud() -> Iterator[Service]:
    service, ready, loop = Service(text="Because of the air."), threading.Event(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=[service.serve(ready)])
    thread.start()
    ready.wait()
    yield service
    loop.call_soon_threadsafe(service.over.set)
    thread.join()
    loop.close()


@pytest.fixture
def deployed(ray_session: RaySession) -> Iterator[Any]:
    """Deploys an application and waits until all of its endpoints are ready; returns where it is."""
    from ray import serve
    from ray.serve._private.api import _get_global_client
    from ray.serve.schema import ServeDeploySchema

    fetch("smollm2-135m-instruct", print)

    def deploy(application: dict[str, Any]) -> str:
        document = ServeDeploySchema.model_validate({"applications": [application]})
        _get_global_client().deploy_apps(document, _blocking=True)
        until(lambda: all_ready(ray_session.url))
        return ray_session.url

    yield deploy
    serve.delete("disco")


def shipped(name: str) -> dict[str, Any]:
    application: dict[str, Any]
    (application,) = copy.deepcopy(load(name).document["applications"])
    return application


def all_ready(url: str) -> bool:
    try:
        endpoints = httpx.get(f"{url}/ready", timeout=10.0).json()["endpoints"]
    except (httpx.HTTPError, ValueError):
        return False
    return bool(endpoints) and all(state["ready"] for state in endpoints.values())


def answer(url: str, pin: str) -> dict[str, Any]:
    body = {
        "model": "disco",
        "max_tokens": 8,
        "messages": [{"role": "user", "content": "Why is the sky blue?"}],
        "disco": {"report": True, "pin": pin},
    }
    response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120.0)
    assert response.status_code == 200, response.text
    parsed: dict[str, Any] = response.json()
    assert {leg["outcome"] for leg in parsed["disco"]["legs"]} == {"completed"}
    return parsed


def text_of(parsed: dict[str, Any]) -> str:
    return str(parsed["choices"][0]["message"]["content"])


def test_the_default_answers_from_both_sides_with_one_model(deployed: Any) -> None:
    url = deployed(shipped("disco"))
    cloud, phone = answer(url, "cloud_only"), answer(url, "device_only")
    assert [parsed["usage"]["completion_tokens"] for parsed in (cloud, phone)] == [8, 8]
    assert [parsed["disco"]["legs"][0]["imitates"] for parsed in (cloud, phone)] == [
        "openai-gpt-4-1106-preview",
        "s23-gemma3-1b-q4",
    ]
    assert text_of(cloud)
    assert text_of(phone)


def test_a_commercial_cloud_answers_with_its_key_and_the_laptop_with_its_model(deployed: Any, cloud: Service) -> None:
    application = shipped("openai")
    application["args"]["endpoints"]["cloud"]["engine"]["base_url"] = cloud.url
    application["runtime_env"] = {"env_vars": {"OPENAI_API_KEY": KEY}}
    url = deployed(application)
    assert text_of(answer(url, "cloud_only")) == cloud.text[:8]
    laptop = answer(url, "device_only")
    assert laptop["usage"]["completion_tokens"] == 8
    assert text_of(laptop)
    assert cloud.refused == 0
    assert {body["model"] for body in cloud.streamed()} == {"gpt-4o-mini"}
    assert KEY not in httpx.get(f"{url}/ready").text + httpx.get(f"{url}/metrics").text
