"""Callers of a server that have not shown who they are: few connections, for a short time, and few guesses.

gRPC takes a connection before anybody sees it, and tells nobody of it before its first call. But its sockets are among
the open files of this process: those of strangers are found there, and shut down where they are too many or too old.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import os
import socket
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pjrt.api.errors import ResourceExhaustedError
from pjrt.remote.security.limits import Limits
from pjrt.remote.transport.addresses import Address

FREE_GUESSES = 8
"""The wrong tokens of an address that are answered at once. Then it has one for each second that passes."""

MOST_ADDRESSES = 4096
"""The addresses whose wrong tokens are remembered: those with the latest ones."""

_FILES = Path("/dev/fd")
_ANY = ("0.0.0.0", "::")
_NETWORK = 4  # the groups of an IPv6 address that are its network's: its user chooses the others

Endpoint = tuple[str, int]


class Strangers:
    """The strangers of one server; the methods may be called by any thread.

    Args:
        limits: how many connections of strangers there may be, and for how long.
    """

    def __init__(self, limits: Limits) -> None:
        self._most, self._seconds = limits.strangers, limits.open_seconds
        self._lock = threading.Lock()
        self._known: dict[Endpoint, bool] = {}  # whether it has shown a token: others come from the host of one
        self._guesses: dict[str, float] = {}  # by host: when the next wrong token would have come at a fair pace
        self._since: dict[Endpoint, float] = {}

    def check_guess(self, peer: str) -> None:
        """Raise an error if a caller may show no token now, as its host has shown too many wrong ones.

        A connection that has shown a right one may go on.

        Args:
            peer: the address of the caller, as gRPC spells it.

        Raises:
            ResourceExhaustedError: it has to wait.
        """
        endpoint = _endpoint(peer)
        if endpoint is None or self._known.get(endpoint):
            return
        seconds = self._guesses.get(_network(endpoint[0]), 0.0) - time.monotonic()
        if seconds > 0:
            raise ResourceExhaustedError(
                f"too many wrong access tokens came from this address; try it again in {seconds:.1f} s"
            )

    def guessed_wrong(self, peer: str) -> None:
        """Note that a caller has shown a wrong token."""
        if (endpoint := _endpoint(peer)) is None:
            return  # a local socket is for this user alone
        with self._lock:
            self._known.pop(endpoint, None)
            network = _network(endpoint[0])
            last = self._guesses.pop(network, 0.0)
            self._guesses[network] = max(last, time.monotonic() - FREE_GUESSES) + 1.0
            if len(self._guesses) > MOST_ADDRESSES:
                del self._guesses[next(iter(self._guesses))]

    def is_known(self, peer: str, *, by_token: bool) -> None:
        """Note that a caller has shown who it is.

        Args:
            peer: the address of the caller, as gRPC spells it.
            by_token: whether the call itself has shown it; else its host has another connection that has.
        """
        endpoint = _endpoint(peer)
        if endpoint is not None and _can_see() and not self._known.get(endpoint):
            with self._lock:
                self._known[endpoint] = by_token

    def drop(self, address: Address, now: float) -> bool:
        """End the connections of strangers that are too old; then the oldest ones of hosts that have the most.

        Args:
            address: where the server listens.
            now: the time of ``time.monotonic``.

        Returns:
            Whether there were too many: more may be coming.
        """
        if address.path or not _can_see():
            return False
        with self._lock:
            gone = set(self._known)  # what becomes known from here on may be missing among those that are found
        found = _connections(address)
        with self._lock:
            for endpoint in gone - found.keys():
                self._known.pop(endpoint, None)
            self._since = {
                endpoint: self._since.get(endpoint, now) for endpoint in found if endpoint not in self._known
            }
        by_host: defaultdict[str, list[Endpoint]] = defaultdict(list)
        for endpoint, since in sorted(self._since.items(), key=lambda item: item[1]):
            if now - since > self._seconds:
                _end(found[endpoint], endpoint)
            else:
                by_host[_network(endpoint[0])].append(endpoint)
        too_many = sum(map(len, by_host.values())) - self._most
        most = [(-len(endpoints), host) for host, endpoints in by_host.items()]
        heapq.heapify(most)
        for _ in range(too_many):
            count, host = most[0]
            endpoint = by_host[host][count]  # of those that are left, the oldest
            _end(found[endpoint], endpoint)
            heapq.heapreplace(most, (count + 1, host))
        return too_many > 0


def host_of(peer: str) -> str:
    """Return the host in a client's address as gRPC spells it, such as ``ipv4:127.0.0.1:4321``."""
    return peer.rpartition(":")[0] if peer.startswith("ip") else peer


def _endpoint(peer: str) -> Endpoint | None:
    """Return the host and the port of a peer as sockets have them; ``None`` for a local socket."""
    kind, _, place = peer.partition(":")
    host, _, port = unquote(place).rpartition(":")
    return (host.strip("[]"), int(port)) if kind in ("ipv4", "ipv6") else None


def _network(host: str) -> str:
    return socket.inet_pton(socket.AF_INET6, host.partition("%")[0])[: 2 * _NETWORK].hex() if ":" in host else host


def _can_see() -> bool:
    """Return whether the sockets of this process can be seen: with a default timeout a look would change them."""
    return _FILES.exists() and socket.getdefaulttimeout() is None


@functools.cache
def _hosts(host: str) -> set[str]:
    return {str(info[4][0]) for info in socket.getaddrinfo(host, None)}


def _connections(address: Address) -> dict[Endpoint, int]:
    """Return the descriptors of the connections to an address, by the endpoints of their peers."""
    found, hosts = {}, _hosts(address.host)
    reaches_all = not hosts.isdisjoint(_ANY)
    for name in os.listdir(_FILES):
        try:
            connection = _socket(int(name))
        except OSError:
            continue  # it is none, or the file that lists them
        with contextlib.suppress(OSError):  # it listens
            ours = _plain(connection.getsockname())
            if ours is not None and ours[1] == address.port and (reaches_all or ours[0] in hosts):
                peer = _plain(connection.getpeername())
                if peer is not None:
                    found[peer] = int(name)
        connection.detach()
    return found


def _socket(descriptor: int) -> socket.socket:
    """Return a descriptor as a socket, of one kind or another: its kind would be further questions."""
    return socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 0, descriptor)


def _plain(name: Any) -> Endpoint | None:
    """Return the name of a socket, with an address of IPv4 as such; ``None`` if it is of another kind."""
    if not isinstance(name, tuple) or not isinstance(name[0], str):
        return None
    return name[0].removeprefix("::ffff:"), name[1]


def _end(descriptor: int, endpoint: Endpoint) -> None:
    # Its owner may have closed it, and the number may be another file's: the copy is looked at again.
    with contextlib.suppress(OSError), _socket(os.dup(descriptor)) as connection:
        if _plain(connection.getpeername()) == endpoint:
            connection.shutdown(socket.SHUT_RDWR)
