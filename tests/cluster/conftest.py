"""One cluster of namespaces for all tests marked ``cluster``; each finds it whole, and without delay or loss."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.hosts.cluster import NODES, Cluster, cluster
from benchmarks.hosts.line import Condition
from benchmarks.hosts.machine import until, why_not
from benchmarks.hosts.twin import twin
from tests.cluster.streams import both_devices_serve, cloud_serves


@pytest.fixture(scope="session")
def hosts() -> Iterator[Cluster]:
    lack = why_not()
    if lack is not None:
        pytest.skip(f"no hosts here: {lack}")
    with cluster() as started:
        started.deploy(twin())
        started.wait_ready()
        yield started


@pytest.fixture
def whole(hosts: Cluster) -> Cluster:
    mend(hosts)
    return hosts


def mend(hosts: Cluster) -> None:
    for node in NODES:
        hosts.network.set(node.name, Condition())
        if not hosts.network[node.name].init.is_running():
            hosts.power_on(node)
    until(lambda: is_whole(hosts), 120)
    until(lambda: both_devices_serve(hosts) and cloud_serves(hosts), 120)


def is_whole(hosts: Cluster) -> bool:
    return (
        len(hosts.replicas("DiscoRouter")) == 2
        and len(hosts.replicas("endpoint-cloud", "cloud")) == 1
        and all(len(hosts.replicas("endpoint-device", host)) == 1 for host in ("arm1", "arm2"))
    )
