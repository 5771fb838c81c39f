"""The sockets of gloo, which carries XLA's collectives between processes.

A collective waits for its peers for half an hour, and XLA has no function to end it sooner. But gloo gives up at once
when a connection breaks. So the connections of a job that has lost a process are shut down from here: they are found
among the sockets of this process by the addresses on which the gloo of each process listens.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Collection, Iterator

Address = tuple[str, int]
"""The host and the port of an end of a connection."""


def listening() -> set[Address]:
    """Return the addresses on which this process accepts TCP connections."""
    return {own for _, own, peer, is_listening in _sockets() if is_listening}


def connections(addresses: Collection[Address]) -> Iterator[tuple[socket.socket, Address, Address]]:
    """Return the connections of this process that have one of the addresses at either end, with both of their ends.

    The sockets that listen are left out: gloo ends the process if one of them fails.
    """
    for opened, own, peer, is_listening in _sockets():
        if peer is not None and not is_listening and (own in addresses or peer in addresses):
            yield opened, own, peer


def _sockets() -> Iterator[tuple[socket.socket, Address, Address | None, bool]]:
    """Return the TCP sockets of this process: each with its own address, its peer's, and whether it listens."""
    for name in os.listdir("/dev/fd"):
        # A copy of the descriptor stays the same socket, even if another thread closes the original meanwhile.
        try:
            copy = os.dup(int(name))
        except OSError:  # closed meanwhile
            continue
        if not stat.S_ISSOCK(os.fstat(copy).st_mode):
            os.close(copy)
            continue
        opened = socket.socket(fileno=copy)
        with opened:
            if opened.type != socket.SOCK_STREAM or opened.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            with contextlib.suppress(OSError):
                own = opened.getsockname()[:2]
                peer = None
                with contextlib.suppress(OSError):  # it has no peer
                    peer = opened.getpeername()[:2]
                is_listening = bool(opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
                yield opened, own, peer, is_listening
