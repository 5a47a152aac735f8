"""The network between the hosts: a process that carries every IPv4 packet from host to host.

    python -m benchmarks.hosts.switch NAME=PID=ADDRESS...

Each host is the network namespace of a process and gets one TUN device, with that address. The process reads commands
from stdin, one JSON object a line, answers each with a line once it is in force, and ends with its stdin:

    {"host": NAME, "delay": ..., "jitter": ..., "loss": ..., "cut": ...}
    {"plug": "NAME=PID=ADDRESS"}

`tc netem` would do, but few kernels of virtual machines and containers have it.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import json
import os
import random
import select
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.hosts.line import Condition, Direction

DEVICE: Final = "wan0"
PREFIX: Final = 24
MTU: Final = 1500

_CLONE_NEWNET: Final = 0x40000000
_TUNSETIFF: Final = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
#: Packets taken from one host before the others have their turn.
_BURST: Final = 64
#: Of an IPv4 header.
_DESTINATION: Final = slice(16, 20)


@contextmanager
def network_of(pid: int) -> Iterator[None]:
    """This thread, and what it opens and starts, in the network namespace of the process ``pid``."""
    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        there = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        try:
            _enter(libc, there)
        finally:
            os.close(there)
        try:
            yield
        finally:
            _enter(libc, home)
    finally:
        os.close(home)


def _enter(libc: ctypes.CDLL, namespace: int) -> None:
    if libc.setns(namespace, _CLONE_NEWNET):
        error = ctypes.get_errno()
        raise OSError(error, f"setns: {os.strerror(error)}")


@dataclass(slots=True)
class Port:
    """A host's end of its line. ``device``: file descriptor of its TUN device."""

    name: str
    device: int
    condition: Condition = field(default_factory=Condition)
    up: Direction = field(default_factory=Direction)
    down: Direction = field(default_factory=Direction)


class Switch:
    """``ports``: by packed IPv4 address. Losses and jitter are drawn from ``seed``."""

    def __init__(self, seed: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self.ports: dict[bytes, Port] = {}
        self._dice = random.Random(seed)
        self._clock = clock
        self._under_way: list[tuple[float, int, Port, Port, bytes]] = []
        self._sent = 0

    def configure(self, name: str, condition: Condition) -> None:
        """Raises KeyError where there is no such host."""
        port = next((port for port in self.ports.values() if port.name == name), None)
        if port is None:
            raise KeyError(f"no host named {name!r}")
        port.condition = condition

    def take(self, source: Port, packet: bytes) -> None:
        target = self.ports.get(packet[_DESTINATION])
        if target is None:
            # Not ours: IPv6's search for routers, multicast.
            return
        now = self._clock()
        left = source.up.arrival(now, source.condition, self._dice)
        arrival = None if left is None else target.down.arrival(left, target.condition, self._dice)
        if arrival is None:
            return
        if arrival <= now:
            _write(target, packet)
        else:
            self._sent += 1
            heapq.heappush(self._under_way, (arrival, self._sent, source, target, packet))

    def deliver(self) -> float | None:
        """Whatever is due; seconds until the next packet is, None if none is under way."""
        while self._under_way:
            wait = self._under_way[0][0] - self._clock()
            if wait > 0:
                return wait
            _, _, source, target, packet = heapq.heappop(self._under_way)
            if not (source.condition.cut or target.condition.cut):
                _write(target, packet)
        return None


def _write(target: Port, packet: bytes) -> None:
    # A full queue, or a host that is gone: the network loses it.
    with suppress(OSError):
        os.write(target.device, packet)


class Service:
    """The switch between devices and commands."""

    def __init__(self, switch: Switch) -> None:
        self._switch = switch
        self._by_device: dict[int, Port] = {}
        self._poll = select.epoll()

    def plug(self, description: str) -> None:
        """A host's end, NAME=PID=ADDRESS, in place of the one that had its address before."""
        name, pid, address = description.split("=")
        packed = bytes(map(int, address.split(".")))
        former = self._switch.ports.get(packed)
        if former is not None:
            del self._by_device[former.device]
            os.close(former.device)
        port = open_port(name, int(pid), address)
        self._switch.ports[packed] = self._by_device[port.device] = port
        self._poll.register(port.device, select.EPOLLIN)

    def run(self) -> None:
        """Until stdin ends."""
        commands = sys.stdin.fileno()
        self._poll.register(commands, select.EPOLLIN)
        while True:
            wait = self._switch.deliver()
            for device, _ in self._poll.poll(-1 if wait is None else wait):
                if device != commands:
                    self._take_from(device)
                elif line := sys.stdin.readline():
                    self._obey(json.loads(line))
                else:
                    return

    def _take_from(self, device: int) -> None:
        for _ in range(_BURST):
            try:
                packet = os.read(device, MTU + 4)
            except OSError:
                return
            self._switch.take(self._by_device[device], packet)

    def _obey(self, command: dict[str, Any]) -> None:
        if "plug" in command:
            self.plug(command["plug"])
        else:
            self._switch.configure(command.pop("host"), Condition(**command))
        print("ok", flush=True)


def open_port(name: str, pid: int, address: str) -> Port:
    with network_of(pid):
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), _IFF_TUN | _IFF_NO_PI))
        for command in (
            "ip link set lo up",
            f"ip address add {address}/{PREFIX} dev {DEVICE}",
            f"ip link set {DEVICE} mtu {MTU} txqueuelen 5000 up",
        ):
            subprocess.run(command.split(), check=True)
    return Port(name, device)


def main(hosts: Sequence[str]) -> int:
    service = Service(Switch())
    for host in hosts:
        service.plug(host)
    print("ok", flush=True)
    service.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
