from __future__ import annotations

import httpx
import pytest

from serve_app.auth import is_loopback
from serve_app.router import effective_http_host
from tests.conftest import RaySession

pytestmark = pytest.mark.ray


class WhereAmI:
    async def __call__(self) -> str | None:
        return await effective_http_host()


def test_a_replica_learns_where_serve_listens(ray_session: RaySession) -> None:
    from ray import serve

    deployment = serve.deployment(WhereAmI).options(
        ray_actor_options={"num_cpus": 0.1}, graceful_shutdown_timeout_s=0.1
    )
    serve.run(deployment.bind(), name="where", route_prefix="/where")
    try:
        answer = httpx.get(f"{ray_session.url}/where", trust_env=False)
        assert answer.status_code == 200
        assert answer.text == "127.0.0.1"
        assert is_loopback(answer.text)
    finally:
        serve.delete("where")
