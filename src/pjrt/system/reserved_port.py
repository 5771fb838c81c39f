"""The loopback address of this host, and a TCP port for a server that is started later."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


def loopback_host() -> str:
    """Return the address that only programs of this host reach: ``127.0.0.1``, or ``::1`` where no other is up."""
    return next(filter(_is_up, ("127.0.0.1", "::1")), "127.0.0.1")


def _is_up(host: str) -> bool:
    import socket

    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return True
    return False


@contextlib.contextmanager
def reserved_port(host: str = "127.0.0.1") -> Iterator[int]:
    """Give a port that is free, and that the system gives to nobody else meanwhile.

    On Linux, the port stays bound: a server may listen on it all the same, if it lets an address be used again
    (``SO_REUSEADDR``), as servers do. Elsewhere it could not, so the port is only one that was free a moment ago.

    Raises:
        OSError: the host is no address of this machine that is up.
    """
    import socket

    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((host, 0))
        port = int(holder.getsockname()[1])
        if sys.platform != "linux":
            holder.close()
        yield port
