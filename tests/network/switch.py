"""Hosts in a network of their own: each is a network namespace of this program, which carries the packets between them.

It needs no ``netem`` in the kernel, changes nothing of the machine, and leaves nothing: the hosts end with this
program, and it ends with its standard input. A line of JSON there changes wires, and a line of the standard output
answers.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import itertools
import json
import os
import random
import select
import socket
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWUSER, CLONE_NEWNET = 0x00020000, 0x04000000, 0x10000000, 0x40000000
MTU = 9000

_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 1, 0x1000
_SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCSIFMTU, _UP = 0x8914, 0x8916, 0x891C, 0x8922, 1
_MOST_WAITING = 4 << 20  # the bytes that wait for a slow wire; later ones are lost, as in a router

_libc = ctypes.CDLL(None, use_errno=True)


def checked(name: str, *arguments: object) -> None:
    """Call a function of C that returns 0 where it succeeds."""
    if getattr(_libc, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def address(host: int) -> str:
    """Return the address of a host."""
    return f"10.77.0.{host + 1}"


def become_root() -> None:
    """Become root of a new user namespace: whoever is not root may make networks there, if the system allows it."""
    ids = os.getuid(), os.getgid()
    checked("unshare", CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    for name, own in zip(("uid_map", "gid_map"), ids, strict=True):
        Path(f"/proc/self/{name}").write_text(f"0 {own} 1")


def make_host(host: int) -> tuple[int, int]:
    """Return the descriptors of a new namespace, and of its one network interface."""
    checked("unshare", CLONE_NEWNET)
    wire = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(wire, _TUNSETIFF, struct.pack("16sH22x", b"eth0", _IFF_TUN | _IFF_NO_PI))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for request, ip in ((_SIOCSIFADDR, address(host)), (_SIOCSIFNETMASK, "255.255.255.0")):
            named = struct.pack("16sHH4s8x", b"eth0", socket.AF_INET, 0, socket.inet_aton(ip))
            fcntl.ioctl(control, request, named)
        fcntl.ioctl(control, _SIOCSIFMTU, struct.pack("16si20x", b"eth0", MTU))
        for name in (b"lo", b"eth0"):
            fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH22x", name, _UP))
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY), wire


@dataclass
class Wire:
    """One direction of the way between two hosts."""

    delay: float = 0.0
    loss: float = 0.0
    rate: float = 0.0
    cut: bool = False
    free_at: float = 0.0


class Switch:
    """Carries packets between the interfaces of hosts."""

    def __init__(self, interfaces: list[int]) -> None:
        self._interfaces = interfaces
        everyone = range(len(interfaces))
        self._wires = {pair: Wire() for pair in itertools.permutations(everyone, 2)}
        self._waiting: list[tuple[float, int, int, bytes]] = []
        self._numbers = itertools.count()
        self._random = random.Random(0)

    def change(self, pairs: list[list[int]], **settings: float) -> None:
        """Change the wires of some pairs of hosts, in both directions."""
        for one, other in pairs:
            for wire in (self._wires[one, other], self._wires[other, one]):
                for name, value in settings.items():
                    setattr(wire, name, value)

    def take(self, host: int) -> None:
        """Take the packets that a host has sent."""
        for _ in range(64):
            try:
                packet = os.read(self._interfaces[host], 1 << 16)
            except BlockingIOError:
                return
            number = packet[19] - 1 if packet[0] >> 4 == 4 and packet[16:19] == b"\x0a\x4d\x00" else -1
            wire = self._wires.get((host, number))
            if wire is None or wire.cut or self._random.random() < wire.loss:
                continue
            now = time.monotonic()
            if wire.rate:
                if (wire.free_at - now) * wire.rate > _MOST_WAITING:
                    continue
                wire.free_at = max(now, wire.free_at) + len(packet) / wire.rate
                now = wire.free_at
            heapq.heappush(self._waiting, (now + wire.delay, next(self._numbers), number, packet))

    def deliver(self) -> float | None:
        """Deliver what is due; return the milliseconds until the next packet is."""
        while self._waiting:
            left = self._waiting[0][0] - time.monotonic()
            if left > 0:
                return left * 1000
            _, _, host, packet = heapq.heappop(self._waiting)
            with contextlib.suppress(BlockingIOError):  # its queue is full, and the packet is lost
                os.write(self._interfaces[host], packet)
        return None


def main(count: int) -> None:
    """Make hosts, and carry their packets until the standard input ends."""
    if os.geteuid():
        become_root()
    namespaces, interfaces = zip(*map(make_host, range(count)), strict=True)
    switch = Switch(list(interfaces))
    poll = select.poll()
    for descriptor in (0, *interfaces):
        poll.register(descriptor, select.POLLIN)
    hosts = {descriptor: host for host, descriptor in enumerate(interfaces)}
    print(json.dumps(namespaces), flush=True)
    while True:
        for descriptor, _ in poll.poll(switch.deliver()):
            if descriptor:
                switch.take(hosts[descriptor])
                continue
            line = os.read(0, 1 << 16)
            if not line:
                return
            switch.change(**json.loads(line))
            print(flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
