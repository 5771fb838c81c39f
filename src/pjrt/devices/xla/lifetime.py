"""The ends that clients do not choose: a fork, and the end of the interpreter."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pjrt.devices.xla.client import XlaClient

_clients: weakref.WeakSet[Any] = weakref.WeakSet()
_orphans: list[Any] = []


_FORKED = (
    "the client was made before this process was forked, and its threads stayed with the parent; make a client in the "
    "child with pjrt.client('cpu'), or start the process with the 'spawn' method"
)


def register(client: XlaClient) -> None:
    """Has a client told when it finds itself in a child of a fork."""
    _clients.add(client)


def _after_fork_in_child() -> None:
    """The runtime's threads did not come along into the child, so what waits for them would wait for ever. Its objects
    are kept as they are: taking them apart would wait too.
    """
    _orphans.extend([client.abandon(_FORKED) for client in list(_clients)])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
