"""What an operator sees of a router, over real streams on virtual time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from serve_app.core.errors import InvalidRequest
from serve_app.live_policy import policy_of, retuned
from serve_app.settings import LiveSettings
from serve_app.snapshot import FRESH, MOST_LENGTHS, MOST_POINTS, MOST_STREAMS, Glance
from serve_app.streams import EndpointState, Readiness
from tests.support.local_service import LocalService, local_service, read_config
from tests.support.virtual_loop import run_virtual

READY = Readiness(True, {"cloud": EndpointState(True, "ready"), "phone": EndpointState(False, "starting")})


async def simulated() -> LocalService:
    return await local_service(*read_config("simulated.yaml"))


def of(snapshot: dict[str, Any], endpoint: str) -> dict[str, Any]:
    (found,) = [one for one in snapshot["endpoints"] if one["endpoint"] == endpoint]
    assert isinstance(found, dict)
    return found


def test_before_the_first_request_there_are_priors_and_no_plan() -> None:
    async def main() -> dict[str, Any]:
        return (await simulated()).service.snapshot(READY)

    snapshot = run_virtual(main())
    assert json.loads(json.dumps(snapshot, allow_nan=False)) == snapshot
    assert (snapshot["plans"], snapshot["streams"], snapshot["streams_over"]) == ([], [], 0)
    assert snapshot["notional"] is True
    assert of(snapshot, "cloud")["ttfts_seen"] == 0
    assert len(of(snapshot, "cloud")["ttft_s"]) == MOST_POINTS
    assert (of(snapshot, "cloud")["ready"], of(snapshot, "phone")["ready"]) == (True, False)
    assert (of(snapshot, "cloud")["slots"], of(snapshot, "phone")["slots"]) == (64, 2)
    assert snapshot["cost"]["compared"] == {"answers": 0, "spent_usd": 0, "cloud_only_usd": 0, "device_only_usd": 0}
    assert "paper" in snapshot["policy_names"]


def test_after_some_requests_it_tells_estimates_plan_budget_and_what_was_saved_and_no_text() -> None:
    async def main() -> tuple[dict[str, Any], list[dict[str, Any]], list[str]]:
        local = await simulated()
        reports, texts = [], []
        for number in range(6):
            text, outcome = await local.ask(3, number)
            reports.append(outcome.report)
            texts.append(text)
        return local.service.snapshot(READY), reports, texts

    snapshot, reports, texts = run_virtual(main())
    written = json.dumps(snapshot, allow_nan=False)
    assert all(text[:20] not in written for text in texts)
    assert "w0x1" not in written
    assert snapshot["streams_over"] == 6
    assert sum(one["wins"] for one in snapshot["endpoints"]) == 6
    assert of(snapshot, "phone")["ttfts_seen"] > 0
    points = of(snapshot, "cloud")["ttft_s"]
    assert points == sorted(points)

    (plan,) = snapshot["plans"]
    assert (plan["cloud"], plan["device"], plan["policy"]) == ("cloud", "phone", "disco-d")
    assert 1 <= len(plan["starts"]) <= MOST_LENGTHS
    assert all(start["cloud_s"] == 0.0 and start["device_s"] >= 0.0 for start in plan["starts"])

    spent = sum(report["cost_usd"] for report in reports)
    assert snapshot["cost"]["spent_usd"] == pytest.approx(spent)
    compared = snapshot["cost"]["compared"]
    cloud = of(snapshot, "cloud")["usd_per_mtok"]
    alone = sum(r["prompt_tokens"] * cloud["prefill"] + r["completion_tokens"] * cloud["decode"] for r in reports) / 1e6
    assert compared["answers"] == 6
    assert compared["spent_usd"] == pytest.approx(spent)
    assert compared["cloud_only_usd"] == pytest.approx(alone)
    assert compared["device_only_usd"] > compared["cloud_only_usd"]

    budget = snapshot["budget"]
    assert (budget["share"], budget["constrained"]) == (0.4, "device")
    assert budget["spent_share"] == pytest.approx(budget["spent_tokens"] / budget["admitted_tokens"])


def test_running_streams_are_listed_newest_first_and_no_more_than_can_be_read() -> None:
    async def main() -> tuple[dict[str, Any], dict[str, Any]]:
        local = await simulated()
        pin: Any = {"endpoints": ("cloud",)}
        streams = [local.service.open(local.request(5, n, **pin)) for n in range(MOST_STREAMS + 2)]
        await streams[-1].started()
        await anext(aiter(streams[-1]))
        during = local.service.snapshot(READY)
        for stream in streams:
            await stream.aclose()
        return during, local.service.snapshot(READY)

    during, after = run_virtual(main())
    assert (during["streams_running"], len(during["streams"])) == (MOST_STREAMS + 2, MOST_STREAMS)
    newest = during["streams"][0]
    assert (newest["phase"], newest["owner"], newest["model"]) == ("decode", "cloud", "disco")
    assert newest["accepted"] >= 1
    assert newest["age_s"] > 0
    assert of(during, "cloud")["legs_running"] == MOST_STREAMS + 2
    assert (after["streams_running"], after["streams"], after["streams_over"]) == (0, [], MOST_STREAMS + 2)


def test_a_stream_that_fails_is_running_no_more() -> None:
    async def main() -> dict[str, Any]:
        local = await simulated()
        stream = local.service.open(local.request(5, 0))
        task = asyncio.create_task(stream.started())
        await asyncio.sleep(0.01)
        task.cancel()
        await stream.aclose()
        await stream.aclose()
        return local.service.snapshot(READY)

    snapshot = run_virtual(main())
    assert (snapshot["streams_running"], snapshot["streams_over"]) == (0, 1)


def test_a_glance_is_taken_once_for_all_who_look_within_half_a_second() -> None:
    taken, now = [], 0.0

    def take() -> dict[str, Any]:
        taken.append(now)
        return {"taken": len(taken)}

    glance = Glance(take, lambda: now)
    assert [glance()["taken"], glance()["taken"]] == [1, 1]
    now = FRESH - 0.01
    assert glance()["taken"] == 1
    now = FRESH
    assert glance()["taken"] == 2


def test_a_changed_policy_keeps_what_was_not_changed() -> None:
    live = LiveSettings.model_validate({"policy": {"budget": 0.4, "tail_share": 0.2}, "limits": {"max_tokens": 9}})
    changed = retuned(live, {"policy": {"budget": 0.7}, "migration": {"mode": "off"}, "regime": "server-constrained"})
    assert policy_of(changed)["policy"] == policy_of(live)["policy"] | {"budget": 0.7}
    assert (changed.migration.mode, changed.regime.value) == ("off", "server-constrained")
    assert changed.limits == live.limits
    assert live.policy.budget == 0.4


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"policy": {"budget": 3}}, "policy.budget"),
        ({"policy": {"bugdet": 0.3}}, "policy.bugdet: unknown key"),
        ({"policy": 7}, "policy"),
        ({"limits": {"max_tokens": 1}}, "only regime, policy, migration, reader"),
        ({"prices": {}}, "only regime, policy, migration, reader"),
        ({"reader": {"consumption_rate": float("inf")}}, "reader.consumption_rate"),
    ],
)
def test_a_policy_that_cannot_be_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest, match=named) as refused:
        retuned(LiveSettings(), changes)
    section = next(iter(changes))
    assert (refused.value.param or "").startswith(section)


def test_a_name_that_may_be_anything_is_not_repeated() -> None:
    with pytest.raises(InvalidRequest) as refused:
        retuned(LiveSettings(), {"canary \x1b[31m": {}})
    assert refused.value.message.startswith("only regime")
    assert refused.value.param is None
