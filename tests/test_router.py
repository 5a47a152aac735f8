"""The router's replica without Serve: settings that change while it runs, and endpoints that cannot be asked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from serve_app import router as router_module
from serve_app.core.errors import InvalidRequest, Unsupported
from serve_app.router import DiscoRouter
from serve_app.settings import AppSettings
from serve_app.watching import RETRY_PERIOD
from tests.support.virtual_loop import run_virtual

APP = AppSettings.model_validate({"endpoints": {"phone": {"kind": "device", "engine": {"type": "simulated"}}}})


@asynccontextmanager
async def routing(
    monkeypatch: pytest.MonkeyPatch, http_host: str = "127.0.0.1", app: AppSettings = APP
) -> AsyncIterator[DiscoRouter]:
    async def host() -> str:
        return http_host

    monkeypatch.setattr(router_module, "effective_http_host", host)
    unfit: Any = object()
    router = DiscoRouter(app, {"phone": unfit})
    try:
        yield router
    finally:
        for task in router._tasks:
            task.cancel()
        await asyncio.wait(router._tasks)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"policy": {"budget": 3}}, "policy.budget"),
        ({"polcy": {}}, "polcy: unknown key"),
        ({"prices": {"endpoints": {"moon": {}}}}, "prices.endpoints: no endpoint named 'moon'"),
    ],
)
def test_settings_that_cannot_be_leave_those_in_force_that_are(
    wrong: dict[str, Any], named: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with routing(monkeypatch) as router:
            with pytest.raises(ValueError, match=r"budget|polcy|moon"):
                await router.reconfigure(wrong)
            await router.reconfigure({"policy": {"budget": 0.3}})
            await router.reconfigure(wrong)
            assert router._service.live.policy.budget == 0.3
            await router.reconfigure({"policy": {"budget": 0.7}})
            assert router._service.live.policy.budget == 0.7

    with caplog.at_level(logging.ERROR):
        run_virtual(main())
    (record,) = caplog.records
    assert named in record.getMessage()


@pytest.mark.parametrize("http_host", ["0.0.0.0", "10.0.0.5", ""])
@pytest.mark.parametrize("token", [True, False])
def test_beyond_loopback_nothing_starts_unless_ray_asks_for_its_token(
    http_host: str, token: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router_module, "is_token_auth_enabled", lambda: token)

    async def main() -> None:
        async with routing(monkeypatch, http_host) as router:
            if not token:
                with pytest.raises(RuntimeError, match="RAY_AUTH_MODE=token on every node"):
                    await router.reconfigure({})
            else:
                await router.reconfigure({})
            assert router._configured is token

    run_virtual(main())


def test_the_operator_changes_the_policy_until_the_next_user_config(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with routing(monkeypatch) as router:
            await router.reconfigure({"policy": {"budget": 0.3}, "limits": {"max_tokens": 99}})
            policy = router.retune({"policy": {"budget": 0.6}})
            assert policy["policy"]["budget"] == router.snapshot()["policy"]["policy"]["budget"] == 0.6
            assert router._service.live.limits.max_tokens == 99
            assert router._state.planner.config.budget == 0.6
            with pytest.raises(InvalidRequest, match="budget: "):
                router.retune({"policy": {"budget": 6}})
            assert router._service.live.policy.budget == 0.6
            await router.reconfigure({"policy": {"budget": 0.4}})
            assert router.snapshot()["policy"]["policy"]["budget"] == 0.4

    run_virtual(main())


def test_one_of_several_routers_does_not_get_a_policy_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    several = AppSettings.model_validate(APP.model_dump(mode="json") | {"router": {"replicas": 2}})

    async def main() -> None:
        async with routing(monkeypatch, app=several) as router:
            await router.reconfigure({})
            with pytest.raises(Unsupported, match="deploy a changed user_config"):
                router.retune({"policy": {"budget": 0.6}})
            assert router.snapshot()["replicas"] == 2

    run_virtual(main())


def test_the_tests_themselves_run_without_a_token() -> None:
    with pytest.raises(RuntimeError):
        router_module.require_token("0.0.0.0")


def test_an_endpoint_that_cannot_be_asked_is_not_ready_and_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with routing(monkeypatch) as router:
            await asyncio.sleep(RETRY_PERIOD * 3)
            readiness = router.readiness()
            assert not readiness.ready
            assert readiness.endpoints["phone"].reason == "the endpoint raised AttributeError"
            assert not any(task.done() for task in router._tasks)

    run_virtual(main())
