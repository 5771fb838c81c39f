"""A TCP port for a server that is started later."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port(host: str = "127.0.0.1") -> Iterator[int]:
    """Give a port that is free, and that the system gives to nobody else meanwhile.

    On Linux, the port stays bound: a server may listen on it all the same, if it lets an address be used again
    (``SO_REUSEADDR``), as servers do. Elsewhere it could not, so the port is only one that was free a moment ago.
    """
    import socket

    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((host, 0))
        port = int(holder.getsockname()[1])
        if sys.platform != "linux":
            holder.close()
        yield port
