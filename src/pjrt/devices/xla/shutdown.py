"""The ends that clients do not choose: a fork, and the end of the interpreter.

A thread that comes back from XLA's code when the interpreter is being taken apart is ended on the spot by CPython, and
inside of C++ code that ends the process. So from the beginning of the end on nobody enters XLA any more but the thread
that ends the interpreter, and that one waits until everybody else has come out.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import sys
import threading
import time
import weakref
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from pjrt.api.errors import CancelledError, FailedPreconditionError
from pjrt.api.future import Future
from pjrt.system import after_fork_in_child

if TYPE_CHECKING:
    from pjrt.devices.xla.client import XlaClient

_log = logging.getLogger("pjrt")

_FORKED = (
    "this process was forked from one that used XLA, whose threads stayed with the parent; start processes that use "
    "the device 'cpu' with the 'spawn' method of multiprocessing, or fork before the first client is made"
)

ENDING = "the interpreter is ending"
"""Why a client cannot be used any more, except by the thread that ends the interpreter."""

# Longer than what other devices are given (api/interpreter_end): XLA cannot be stopped, and what it runs must not come
# back to an interpreter that is taken apart.
_PATIENCE_SECONDS = 10.0
_POLL_SECONDS = 0.001
_UNWINDING_SECONDS = 0.5
"""The seconds that threads that were turned away may take to end: they drop objects of XLA on the way."""
_ROOM = str(Path(__file__).parent)

_clients: weakref.WeakSet[Any] = weakref.WeakSet()
_own: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_turned_away: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
# A prototype of our own: the function of ``ctypes.pythonapi`` is shared by all packages of the process.
_keep_for_ever = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("Py_IncRef", ctypes.pythonapi))
_state = {"used": False, "forked": False, "ender": 0}


def check_not_forked() -> None:
    """Returns if XLA can be used in this process.

    Raises:
        FailedPreconditionError: it was used before the process was forked. XLA has locks and threads of its own that no
            new client replaces: compiling would end the process.
    """
    if _state["forked"]:
        raise FailedPreconditionError(_FORKED)


def check_thread() -> None:
    """Return if the calling thread may use XLA: at the end of the interpreter, only the one that ends it may.

    Raises:
        SystemExit: it is a thread of Python's: a daemon, which nobody waits for, and which ends by this without a word.
        CancelledError: it is another thread, whose owner has to deal with the error.
    """
    ender = _state["ender"]
    if not ender or ender == threading.get_ident():
        return
    thread = threading.current_thread()
    if thread in _own:
        return
    if isinstance(thread, threading._DummyThread):
        raise CancelledError(f"{ENDING}; the device 'cpu' does nothing more")
    _turned_away.add(thread)
    raise SystemExit


def register(client: XlaClient) -> None:
    """Has a client told of a fork, and of the end of the interpreter."""
    check_thread()
    _state["used"] = True
    _clients.add(client)


def register_own(thread: threading.Thread) -> None:
    """Has the end of the interpreter wait for a thread of this room, which waits inside jaxlib."""
    _own.add(thread)


def _after_fork_in_child() -> None:
    """What waits for the runtime's threads would wait for ever in the child. The runtime's objects are kept as they
    are, also when the interpreter ends: taking them apart would wait too.
    """
    _state["forked"] = _state["used"]
    for client in list(_clients):
        for orphan in client.abandon(_FORKED):
            _keep_for_ever(ctypes.py_object(orphan))


def _at_exit() -> None:
    if _state["forked"] or not _state["used"]:
        return
    deadline = time.monotonic() + _PATIENCE_SECONDS
    _state["ender"] = threading.get_ident()
    for client in list(_clients):
        client.close_to_others()
    inside = _frames_inside()
    while inside and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        inside &= _frames_inside()  # who came later was turned away
    _let_others_go_on(min(deadline, time.monotonic() + _UNWINDING_SECONDS))
    finished = [client.finish(deadline) for client in list(_clients)]
    _join(_own, deadline)
    _join(_turned_away, min(deadline, time.monotonic() + _UNWINDING_SECONDS))
    if inside or not all(finished):
        _log.warning(
            "the interpreter ends although XLA is still at work on the device 'cpu' after %g s; the work is given up",
            _PATIENCE_SECONDS,
        )


def _let_others_go_on(deadline: float) -> None:
    """Waits until other threads have gone on since nobody enters XLA any more. One that dropped an array just before,
    in whatever code, may still be in XLA's, and nothing tells it from one that sleeps.
    """
    left = _places()
    while left and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        left &= _places()


def _places() -> set[tuple[int, FrameType, int]]:
    """Return the frame of each thread that is not waiting for a lock or an event."""
    own = {thread.ident for thread in _own} | {_state["ender"]}
    return {
        (thread, top, top.f_lasti)
        for thread, top in sys._current_frames().items()
        if thread not in own
        and top.f_code is not Future._block.__code__
        and top.f_code.co_filename != threading.__file__
    }


def _join(threads: Iterable[threading.Thread], deadline: float) -> None:
    for thread in list(threads):
        if thread.is_alive():
            thread.join(max(deadline - time.monotonic(), 0))


def _frames_inside() -> set[FrameType]:
    """The innermost frame of this room of each thread that may be in jaxlib, or on its way there."""
    own = {thread.ident for thread in _own} | {_state["ender"]}
    found: set[FrameType] = set()
    for thread, top in sys._current_frames().items():
        if thread in own or top.f_code is Future._block.__code__:  # waits for a lock, maybe for ever
            continue
        frame: FrameType | None = top
        while frame is not None:
            if frame.f_code.co_filename.startswith(_ROOM):
                found.add(frame)
                break
            frame = frame.f_back
    return found


after_fork_in_child(_after_fork_in_child)
atexit.register(_at_exit)
