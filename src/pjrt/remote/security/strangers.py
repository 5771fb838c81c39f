"""Callers of a server that have not shown who they are: few connections, for a short time, and few guesses.

gRPC takes a connection before anybody sees it, and tells nobody of it before its first call. But its sockets are among
the open files of this process: those of strangers are found there, and shut down where they are too many or too old.
On Linux a filter of the listening socket then has the kernel drop attempts of the addresses that they come from, before
anything is allocated for them: each one that gRPC takes in costs the time of some steps of a client.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import os
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pjrt.api.errors import ResourceExhaustedError
from pjrt.remote.security.limits import Limits
from pjrt.remote.transport.addresses import Address
from pjrt.system.connection_filter import MOST_KEPT_OUT, drop_attempts

FREE_GUESSES = 8
"""The wrong tokens of an address that are answered at once. Then it has one for each second that passes."""

MOST_ADDRESSES = 4096
"""The addresses whose wrong tokens are remembered: those with the latest ones."""

MOST_NEW = 500
"""The new strangers of an address in a second, beyond which the kernel drops some: so many take a tenth of a core."""

_FILES = Path("/dev/fd")
_ANY = ("0.0.0.0", "::")
_COUNTS = Path("/proc/net/snmp")
_LEAST_SHARE = 1 / 4  # an honest system tries again some times within seconds
_FEWER = 2
_MORE_SECONDS = 1.0
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
        self._shares: dict[str, float] = {}  # by network: of its attempts to connect, those that the kernel passes on
        self._raised = self._looked = 0.0
        self._taken = 0

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

        Where many new ones come from a network, the kernel drops some of its attempts at random, so that an honest
        client there comes in when its system tries again. Each second without too many, twice as many pass.

        Args:
            address: where the server listens.
            now: the time of ``time.monotonic``.

        Returns:
            Whether there were too many, or some attempts are dropped: more may be coming.
        """
        if address.path or not _can_see():
            return False
        with self._lock:
            gone = set(self._known)  # what becomes known from here on may be missing among those that are found
        listeners, found = _sockets(address)
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
        new = Counter(_network(endpoint[0]) for endpoint, since in self._since.items() if since == now)
        most_new = MOST_NEW * (now - self._looked)
        is_flooded = self._keep_out([host for host, count in new.items() if count > most_new], listeners, now)
        connections = _taken_connections()
        is_flooded |= connections - self._taken > most_new
        self._looked, self._taken = now, connections
        return too_many > 0 or is_flooded

    def _keep_out(self, crowds: Collection[str], listeners: Iterable[int], now: float) -> bool:
        """Have fewer attempts of crowds pass, and more of others if it is time for that; return whether any wait."""
        before = dict(self._shares)
        if crowds:
            self._raised = now
        elif now >= self._raised + _MORE_SECONDS:
            self._raised = now
            self._shares = {network: 2 * share for network, share in before.items() if 2 * share < 1}
        for network in crowds:
            share = self._shares.pop(network, 1.0)
            self._shares[network] = max(_LEAST_SHARE, share / _FEWER)
        while len(self._shares) > MOST_KEPT_OUT:
            del self._shares[next(iter(self._shares))]
        if self._shares != before:
            for listener in listeners:
                drop_attempts(listener, self._shares)
        return bool(self._shares)


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


def _sockets(address: Address) -> tuple[list[int], dict[Endpoint, int]]:
    """Return the descriptors that listen at an address, and those of its connections by the peers' endpoints."""
    listeners: list[int] = []
    found: dict[Endpoint, int] = {}
    hosts = _hosts(address.host)
    reaches_all = not hosts.isdisjoint(_ANY)
    for name in os.listdir(_FILES):
        try:
            connection = _socket(int(name))
        except OSError:
            continue  # it is none, or the file that lists them
        with contextlib.suppress(OSError):  # it is open no more
            ours = _plain(connection.getsockname())
            if ours is not None and ours[1] == address.port and (reaches_all or ours[0] in hosts):
                if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    listeners.append(int(name))
                elif (peer := _plain(connection.getpeername())) is not None:
                    found[peer] = int(name)
        connection.detach()
    return listeners, found


def _taken_connections() -> int:
    """Return how many connections this machine, or this container, has taken since its start; 0 where it is unknown.

    Those that are closed at once are seen in no look, and have this one come sooner.
    """
    try:
        names, counts = (line.split() for line in _COUNTS.read_text().splitlines() if line.startswith("Tcp:"))
        return int(counts[names.index("PassiveOpens")])
    except (OSError, ValueError):
        return 0


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
