"""Two router replicas over one endpoint: what either of them observes, the other learns."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from serve_app.core.estimates import Seen
from serve_app.core.exchange import News
from tests.conftest import RaySession
from tests.e2e.test_application import answer, chat, ready, replica_pid, until

pytestmark = pytest.mark.ray

ARGS: dict[str, Any] = {
    "endpoints": {
        "phone": {
            "kind": "device",
            "slots": 8,
            "engine": {"type": "simulated", "seed": 3, "overhead": 0.01, "decode_rate": 200},
            "placement": {"num_cpus": 0.1},
        },
    },
    "router": {"replicas": 2, "num_cpus": 0.1},
}


@pytest.fixture
def url(ray_session: RaySession) -> Iterator[str]:
    from ray import serve
    from ray.serve._private.api import _get_global_client
    from ray.serve.schema import ServeDeploySchema

    application = {"name": "two", "route_prefix": "/", "import_path": "serve_app.app:build_app", "args": ARGS}
    _get_global_client().deploy_apps(ServeDeploySchema.model_validate({"applications": [application]}), _blocking=True)
    until(lambda: all(e["ready"] for e in ready(ray_session.url)["endpoints"].values()))
    yield ray_session.url
    serve.delete("two")


def test_both_routers_bring_what_they_saw_and_serve_on_without_the_exchange(ray_session: RaySession, url: str) -> None:
    from ray import serve

    exchange = serve.get_deployment_handle("exchange", "two")

    async def trade() -> News:
        told: News = await exchange.trade.remote("a third one", 0, [], {})
        return told

    def seen() -> Counter[Seen]:
        return Counter(each.what for each in ray_session.run(trade()).observations)

    for number in range(12):
        answer(url, chat(f"prompt {number}", max_tokens=4))
    until(lambda: seen()[Seen.ANSWER] == 12)
    assert seen()[Seen.PROMPT] == seen()[Seen.FIRST_TOKEN] == 12

    os.kill(replica_pid("exchange"), signal.SIGKILL)
    for number in range(4):
        assert answer(url, chat(f"again {number}", max_tokens=4))["usage"]["completion_tokens"] == 4
