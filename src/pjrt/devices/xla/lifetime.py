"""The ends that clients do not choose: a fork, and the end of the interpreter."""

from __future__ import annotations

import atexit
import ctypes
import threading
import weakref
from typing import TYPE_CHECKING, Any

from pjrt.api.errors import FailedPreconditionError
from pjrt.system import after_fork_in_child

if TYPE_CHECKING:
    from pjrt.devices.xla.client import XlaClient

_FORKED = (
    "this process was forked from one that used XLA, whose threads stayed with the parent; start processes that use "
    "the device 'cpu' with the 'spawn' method of multiprocessing, or fork before the first client is made"
)

_clients: weakref.WeakSet[Any] = weakref.WeakSet()
_waiting: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_keep_for_ever = ctypes.pythonapi.Py_IncRef
_keep_for_ever.argtypes = [ctypes.py_object]
_keep_for_ever.restype = None
_state = {"used": False, "forked": False}


def check_not_forked() -> None:
    """Returns if XLA can be used in this process.

    Raises:
        FailedPreconditionError: it was used before the process was forked. XLA has locks and threads of its own that no
            new client replaces: compiling would end the process.
    """
    if _state["forked"]:
        raise FailedPreconditionError(_FORKED)


def register(client: XlaClient) -> None:
    """Has a client told of a fork, and of the end of the interpreter."""
    _state["used"] = True
    _clients.add(client)


def register_waiting(thread: threading.Thread) -> None:
    """Has the end of the interpreter wait for a thread that waits inside jaxlib."""
    _waiting.add(thread)


def _after_fork_in_child() -> None:
    """What waits for the runtime's threads would wait for ever in the child. The runtime's objects are kept as they
    are, also when the interpreter ends: taking them apart would wait too.
    """
    _state["forked"] = _state["used"]
    for client in list(_clients):
        for orphan in client.abandon(_FORKED):
            _keep_for_ever(ctypes.py_object(orphan))


def _at_exit() -> None:
    """Nothing that runs may come back to an interpreter that is taken apart: a thread that enters it then is ended on
    the spot, and inside of C++ code that ends the process.
    """
    if _state["forked"]:
        return
    for client in list(_clients):
        client.finish()
    for thread in list(_waiting):
        thread.join()


after_fork_in_child(_after_fork_in_child)
atexit.register(_at_exit)
