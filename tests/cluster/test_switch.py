"""What the network between the hosts does to packets; no namespaces are needed for that."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.hosts.line import Condition, Direction
from benchmarks.hosts.switch import Port, Switch

A, B, NOBODY = bytes([10, 77, 0, 1]), bytes([10, 77, 0, 2]), bytes([224, 0, 0, 1])


def packet(target: bytes, number: int = 0) -> bytes:
    return bytes([0x45]) + bytes(15) + target + bytes([number])


class Bench:
    """Two hosts, A and B, whose devices are pipes, and a clock that stands still."""

    def __init__(self) -> None:
        self.now = 100.0
        self.switch = Switch(clock=lambda: self.now)
        self._out = {}
        for name, address in (("a", A), ("b", B)):
            self._out[name], device = os.pipe2(os.O_NONBLOCK)
            self.switch.ports[address] = Port(name, device)

    def send(self, number: int = 0, target: bytes = B) -> None:
        self.switch.take(self.switch.ports[A], packet(target, number))

    def received(self) -> list[int]:
        """Numbers of the packets that came to B since the last time."""
        size = len(packet(B))
        try:
            got = os.read(self._out["b"], 1 << 16)
        except BlockingIOError:
            return []
        return [got[start + size - 1] for start in range(0, len(got), size)]

    def close(self) -> None:
        for port in self.switch.ports.values():
            os.close(port.device)
        for end in self._out.values():
            os.close(end)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def test_without_delay_a_packet_is_there_at_once(bench: Bench) -> None:
    bench.send(7)
    assert bench.received() == [7]
    assert bench.switch.deliver() is None


def test_a_packet_passes_both_lines(bench: Bench) -> None:
    bench.switch.configure("a", Condition(delay=0.25))
    bench.switch.configure("b", Condition(delay=0.5))
    bench.send(1)
    assert bench.switch.deliver() == 0.75
    bench.now += 0.75
    assert bench.switch.deliver() is None
    assert bench.received() == [1]


def test_what_is_under_way_when_a_line_is_cut_is_lost_and_later_packets_pass(bench: Bench) -> None:
    bench.switch.configure("b", Condition(delay=0.5))
    bench.send(1)
    bench.switch.configure("b", Condition(cut=True))
    bench.send(2)
    bench.now += 1.0
    bench.switch.deliver()
    bench.switch.configure("b", Condition())
    bench.send(3)
    assert bench.received() == [3]


def test_packets_for_nobody_are_dropped(bench: Bench) -> None:
    bench.send(1, NOBODY)
    bench.switch.take(bench.switch.ports[A], b"\x60")
    assert bench.received() == []


def test_a_host_that_is_not_there_cannot_be_configured(bench: Bench) -> None:
    with pytest.raises(KeyError, match="no host named 'c'"):
        bench.switch.configure("c", Condition())


@given(
    gaps=st.lists(st.floats(0, 0.2), min_size=1, max_size=50),
    delay=st.floats(0, 1),
    share=st.floats(0, 1),
    seed=st.integers(0, 100),
)
def test_every_packet_takes_its_delay_within_the_jitter_and_overtakes_none(
    gaps: list[float], delay: float, share: float, seed: int
) -> None:
    condition, direction, dice = Condition(delay, delay * share), Direction(), random.Random(seed)
    now, before = 0.0, 0.0
    for gap in gaps:
        now += gap
        arrival = direction.arrival(now, condition, dice)
        assert arrival is not None
        assert arrival >= before
        earliest, latest = now + condition.delay - condition.jitter, now + condition.delay + condition.jitter
        assert earliest - 1e-9 <= arrival <= max(latest, before) + 1e-9
        before = arrival


def test_the_share_that_is_lost() -> None:
    dice, direction, condition = random.Random(1), Direction(), Condition(loss=0.02)
    lost = sum(direction.arrival(0.0, condition, dice) is None for _ in range(10_000))
    assert 150 < lost < 250


@pytest.mark.parametrize("wrong", [{"delay": 0.1, "jitter": 0.2}, {"jitter": -0.1}, {"loss": 1.1}, {"loss": -0.1}])
def test_conditions_that_cannot_be(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must lie between 0"):
        Condition(**wrong)
