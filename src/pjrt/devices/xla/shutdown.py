"""The two ends that a client does not choose: a fork, and the end of the interpreter.

CPython ends a thread on the spot if the thread comes back from XLA's code while the interpreter is being destroyed, and
inside C++ code that ends the whole process. So when the interpreter begins to end, only the thread that ends it may
still enter XLA, and it waits until all other threads have come out.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from pjrt.api.errors import CancelledError, FailedPreconditionError
from pjrt.api.future import Future
from pjrt.system import after_fork_in_child

_log = logging.getLogger("pjrt")

_FORKED = (
    "this process was forked from one that used XLA, whose threads stayed with the parent; start processes that use "
    "the device 'cpu' with the 'spawn' method of multiprocessing, or fork before the first client is made"
)

ENDING = "the interpreter is ending"
"""The reason why only the thread that ends the interpreter can use a runtime."""

# Longer than other devices get (``api.waits``): XLA cannot be stopped, and its threads must not come back to an
# interpreter that is being destroyed.
_PATIENCE_SECONDS = 10.0
_POLL_SECONDS = 0.001
_LOOK_SECONDS = 0.02
_UNWINDING_SECONDS = 0.5
"""The seconds in which a thread that can go on does, unless it sleeps; without those in which one gets no processor."""
_STARVING_SECONDS = 60.0
"""The seconds after which a thread is not waited for any longer, even if it gets no processor."""
_PACKAGE = str(Path(__file__).parent)


class Endable(Protocol):
    """A runtime, as a fork and the end of the interpreter see it."""

    def abandon(self, reason: str) -> list[Any]:
        """End without waiting, in the child of a fork, and return the objects that must never be destroyed."""

    def join_launches(self, deadline: float | None = None) -> None:
        """Wait for launches that wait for other processes, until a time of ``time.monotonic``."""

    def close_to_others(self) -> None:
        """Refuse all threads from now on except the one that ends the interpreter."""

    def finish(self, deadline: float) -> bool:
        """Wait for work under way until a time of ``time.monotonic``, and return whether it is finished."""


_runtimes: weakref.WeakSet[Any] = weakref.WeakSet()
_own: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
# A prototype of our own: all packages of the process share the function object in ``ctypes.pythonapi``.
_keep_for_ever = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("Py_IncRef", ctypes.pythonapi))
_state = {"used": False, "forked": False, "ender": 0}


def check_not_forked() -> None:
    """Return if XLA can be used in this process.

    Raises:
        FailedPreconditionError: XLA was used before the process was forked. It has locks and threads of its own that no
            new client replaces: compiling would end the process.
    """
    if _state["forked"]:
        raise FailedPreconditionError(_FORKED)


def check_thread() -> None:
    """Return if the calling thread may use XLA: while the interpreter ends, only the thread that ends it may.

    Raises:
        SystemExit: the caller is a daemon thread of Python. No thread waits for it, and this exception ends it quietly.
        CancelledError: the caller is a thread that Python did not start. Its owner has to handle the error.
    """
    ender = _state["ender"]
    if not ender or ender == threading.get_ident():
        return
    thread = threading.current_thread()
    if thread in _own:
        return
    if isinstance(thread, threading._DummyThread):
        raise CancelledError(f"{ENDING}; the device 'cpu' does nothing more")
    raise SystemExit


def register(runtime: Endable) -> None:
    """End a runtime at a fork and at the end of the interpreter."""
    check_thread()
    _state["used"] = True
    _runtimes.add(runtime)


def register_own(thread: threading.Thread) -> None:
    """Wait for a thread of this package, which waits inside jaxlib, at the end of the interpreter."""
    _own.add(thread)


def _after_fork_in_child() -> None:
    """Abandon all runtimes in the child, where a wait for XLA's threads would never end.

    jaxlib's objects are kept, also when the interpreter ends: destroying them would wait too.
    """
    _state["forked"] = _state["used"]
    for runtime in list(_runtimes):
        for orphan in runtime.abandon(_FORKED):
            _keep_for_ever(ctypes.py_object(orphan))


def _at_exit() -> None:
    if _state["forked"] or not _state["used"]:
        return
    deadline = time.monotonic() + _PATIENCE_SECONDS
    for runtime in list(_runtimes):
        runtime.join_launches(deadline)
    _state["ender"] = threading.get_ident()
    for runtime in list(_runtimes):
        runtime.close_to_others()
    inside = _wait_for_others_inside(deadline)
    finished = [runtime.finish(deadline) for runtime in list(_runtimes)]
    _join(_own, deadline)
    inside |= _wait_for_others_inside(deadline)  # those that waited for what is there now
    _wait_while(_others_are_at_large)
    if inside or not all(finished):
        _log.warning(
            "the interpreter ends although XLA is still at work on the device 'cpu' after %g s; the work is abandoned",
            _PATIENCE_SECONDS,
        )


def _wait_for_others_inside(deadline: float) -> set[FrameType]:
    """Wait until every other thread has come out of XLA; return the frames of this package in which some still are."""
    inside = _frames_inside()
    while inside and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        inside &= _frames_inside()  # a thread that came later was refused
    return inside


def _wait_while(are_at_large: Callable[[], bool]) -> None:
    """Wait while threads are at large, as long as they may only be slow.

    One that sleeps in code of others may do so for ever, and looks like one that a busy machine has put off.
    """
    from pjrt.system.processes import Starvation  # here: only the end needs it

    starvation, left, pause = Starvation(), _UNWINDING_SECONDS, _POLL_SECONDS
    end = time.monotonic() + _STARVING_SECONDS
    while are_at_large() and left > 0 and time.monotonic() < end:
        time.sleep(pause)
        if not starvation.look():
            left -= pause  # not the time that has passed: this thread may have been put off, too
        pause = min(2 * pause, _LOOK_SECONDS)


def _others_are_at_large() -> bool:
    """Whether another thread goes on. It may hold objects of XLA, and enters XLA when it drops them, in whatever code.

    One that calls this package is refused, and ends.
    """
    own = {thread.ident for thread in _own} | {_state["ender"]}
    return any(
        thread not in own
        and not _waits(top)
        and not (top.f_code.co_filename == threading.__file__ and top.f_code.co_name in _WAITS_OF_THREADING)
        for thread, top in sys._current_frames().items()
    )


_WAITS_OF_THREADING = ("wait", "join", "_wait_for_tstate_lock")
"""Functions of ``threading`` in which a thread may wait for ever, and drops nothing."""


def _waits(top: FrameType) -> bool:
    """Whether a thread waits for a future that is not done, maybe for ever."""
    return top.f_code is Future._block.__code__ and not top.f_locals["self"]._done


def _join(threads: Iterable[threading.Thread], deadline: float) -> None:
    for thread in list(threads):
        if thread.is_alive():
            thread.join(max(deadline - time.monotonic(), 0))


def _frames_inside() -> set[FrameType]:
    """Return this package's innermost frame of each thread that may be in jaxlib, or on its way there."""
    own = {thread.ident for thread in _own} | {_state["ender"]}
    inside: set[FrameType] = set()
    for thread, top in sys._current_frames().items():
        if thread in own or _waits(top):
            continue
        frame: FrameType | None = top
        while frame is not None:
            if frame.f_code.co_filename.startswith(_PACKAGE):
                inside.add(frame)
                break
            frame = frame.f_back
    return inside


after_fork_in_child(_after_fork_in_child)
atexit.register(_at_exit)
