"""The sockets of gloo, which carries XLA's collectives between processes.

A collective waits for its peers for half an hour, and XLA has no function to end it sooner. But gloo gives up at once
when a connection breaks. So the connections of a job that has lost a process are shut down from here: they are found
among the sockets of this process by the addresses on which the gloo of each process listens.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Collection, Iterator

Address = tuple[str, int]
"""The host and the port of an end of a connection."""


def listening() -> set[Address]:
    """Return the addresses on which this process accepts TCP connections."""
    return {own for _, own, peer, is_listening in _sockets() if is_listening}


def shut_down(addresses: Collection[Address]) -> int:
    """Shut down the connections of this process that have one of the addresses at either end; return their number.

    The sockets that listen stay: gloo ends the process if one of them fails.
    """
    count = 0
    for opened, own, peer, is_listening in _sockets():
        if not is_listening and (own in addresses or peer in addresses):
            with contextlib.suppress(OSError):  # it broke just now
                opened.shutdown(socket.SHUT_RDWR)
                count += 1
    return count


def _sockets() -> Iterator[tuple[socket.socket, Address, Address | None, bool]]:
    """Return the TCP sockets of this process: each with its own address, its peer's, and whether it listens."""
    for name in os.listdir("/dev/fd"):
        # A copy of the descriptor stays the same socket, even if another thread closes the original meanwhile.
        try:
            opened = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # no socket, or closed meanwhile
            continue
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
