"""The application of configs/k8s.yaml over five hosts and a network that is slow, lossy or cut, seen from a sixth."""

from __future__ import annotations

import copy
import re
import sys
import time
from pathlib import Path

import pytest

from benchmarks.hosts.cluster import NODES, Cluster
from benchmarks.hosts.crowd import Crowd, moves
from benchmarks.hosts.line import Condition
from benchmarks.hosts.machine import until
from benchmarks.hosts.twin import KEY, application, live
from tests.cluster.streams import (
    amid_answers,
    both_devices_serve,
    cloud_serves,
    errands,
    first_text,
    newcomers,
    problems,
)

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

WAN = {
    "cloud": Condition(delay=0.04, jitter=0.01, loss=0.01),
    "arm1": Condition(delay=0.02, jitter=0.01, loss=0.02),
    "arm2": Condition(delay=0.1, jitter=0.03, loss=0.01),
    "client": Condition(delay=0.01, jitter=0.005, loss=0.01),
}

#: Seconds within which new requests have text after any fault.
SOON = 5.0

#: Seconds for which the network cuts a host off.
CUT = 10.0

#: Seconds after which Serve asks replicas how busy they are before it sends them anything.
REMEMBERED = 11.0

#: Its answer is longer than 160 tokens.
LONG_ANSWER = "tell me about bridge number 5"


def test_replicas_run_where_their_labels_are(whole: Cluster) -> None:
    assert [len(whole.replicas("DiscoRouter", node.name)) for node in NODES] == [0, 1, 1, 0, 0, 0]
    assert [len(whole.replicas("endpoint-cloud", node.name)) for node in NODES] == [0, 0, 0, 1, 0, 0]
    assert [len(whole.replicas("endpoint-device", node.name)) for node in NODES] == [0, 0, 0, 0, 1, 1]


def test_a_slow_and_lossy_network_changes_no_text(whole: Cluster) -> None:
    for host, condition in WAN.items():
        whole.network.set(host, condition)
    seen = Crowd(whole, errands(40, 1), at_once=10).start().wait()
    assert not problems(seen)
    assert {s.report["winner"] for s in seen if s.report} == {"cloud", "device"}


def test_a_far_device_is_not_forgotten_for_a_near_one(whole: Cluster) -> None:
    whole.network.set("arm1", Condition(delay=0.01))
    whole.network.set("arm2", Condition(delay=0.1))
    time.sleep(REMEMBERED)
    assert both_devices_serve(whole)


def test_streams_of_a_cloud_that_is_cut_off_go_on_and_it_serves_again_when_it_is_back(whole: Cluster) -> None:
    crowd = amid_answers(whole, 2, {"cloud": 1})
    raylet = raylets(whole, "cloud")
    whole.network.set("cloud", Condition(cut=True))
    probes = newcomers(whole, 3)
    time.sleep(CUT)
    whole.network.set("cloud", Condition())
    assert not problems(crowd.wait())
    assert ("cloud", "device", "rescue") in {move for seen in crowd.wait() for move in moves(seen)}
    assert first_text(probes) < SOON
    until(lambda: cloud_serves(whole), 60)
    assert raylets(whole, "cloud") == raylet, "so short a cut costs no node"


def raylets(cluster: Cluster, host: str) -> list[int]:
    return [p.pid for p in cluster.network[host].processes() if "/raylet/raylet" in " ".join(p.cmdline())]


def test_streams_of_a_device_that_is_cut_off_go_on(whole: Cluster) -> None:
    crowd = amid_answers(whole, 4, {"device": 2})
    whole.network.set("arm1", Condition(cut=True))
    probes = newcomers(whole, 5)
    assert not problems(crowd.wait())
    assert first_text(probes) < SOON
    whole.network.set("arm1", Condition())
    until(lambda: both_devices_serve(whole), 90)


def test_a_node_that_lost_its_power_is_survived_and_a_new_one_in_its_place_gets_work(whole: Cluster) -> None:
    crowd = amid_answers(whole, 6, {"device": 2})
    whole.network.power_off("arm2")
    probes = newcomers(whole, 7)
    assert not problems(crowd.wait())
    assert first_text(probes) < SOON
    (arm2,) = (node for node in NODES if node.name == "arm2")
    whole.power_on(arm2)
    until(lambda: both_devices_serve(whole), 120)


def test_streams_and_newcomers_do_not_miss_serves_controller(whole: Cluster) -> None:
    crowd = amid_answers(whole, 8, {"": 4})
    (controller,) = (p for p in whole.head.processes() if "ServeController" in " ".join(p.cmdline()))
    controller.kill()
    probes = newcomers(whole, 9)
    assert not problems(crowd.wait())
    assert first_text(probes) < SOON


def test_of_a_router_replica_that_dies_only_its_own_streams_break_and_a_client_resumes_them(whole: Cluster) -> None:
    disco = [sys.executable, "-c", "from serve_app.cli.main import app; app()"]
    ask = [*disco, "chat", "--url", whole.url, "--key", KEY, "--no-report", "--max-tokens", "160", LONG_ANSWER]
    logs = [whole.client.folder / f"chat{number}.log" for number in range(4)]
    crowd = Crowd(whole, errands(12, 10, (80, 100)), at_once=6).start()
    chats = [whole.client.start(ask, log=log.name, errors=f"{log.stem}.err") for log in logs]
    until(lambda: all(log.exists() and len(log.read_text()) > 10 for log in logs) and crowd.streaming, 60, 0.05)
    (victim,) = whole.replicas("DiscoRouter", "router2")
    victim.kill()
    probes = newcomers(whole, 11)
    ends = {seen.end.partition(":")[0] for seen in crowd.wait()}
    assert "complete" in ends
    assert ends <= {"complete", "broken", "silence"}
    assert all(seen.problems in ([], [seen.end]) for seen in crowd.wait())
    assert first_text(probes) < SOON
    assert [chat.wait(60) for chat in chats] == [0] * 4
    texts = [spoken(log) for log in logs]
    assert all(max(texts, key=len).startswith(text) for text in texts)
    assert any("the connection broke" in log.with_suffix(".err").read_text() for log in logs)


def spoken(log: Path) -> str:
    """The text of an answer on a terminal, without the seams between its writers and what stands below it."""
    return re.sub(" ┃[^┃]*┃ ", "", log.read_text().rpartition("\n■")[0])


@pytest.mark.parametrize("what", ["user_config", "args"])
def test_an_upgrade_under_load_cuts_nobody(whole: Cluster, what: str) -> None:
    document = copy.deepcopy(dict(whole.deployed))
    if what == "user_config":
        live(document)["policy"] = {"budget": 0.3}
    else:
        application(document)["args"]["router"]["seed"] = 1
        application(document)["args"]["endpoints"]["cloud"]["engine"]["seed"] = 99
    before = {process.pid for process in whole.replicas("DiscoRouter")}
    crowd = Crowd(whole, errands(120, 12), at_once=20).start()
    until(lambda: len(crowd.streaming) >= 6, 30, 0.05)
    whole.deploy(document)
    assert not problems(crowd.wait())
    if what == "args":
        until(lambda: not before & {process.pid for process in whole.replicas("DiscoRouter")}, 120)
    else:
        assert before == {process.pid for process in whole.replicas("DiscoRouter")}
