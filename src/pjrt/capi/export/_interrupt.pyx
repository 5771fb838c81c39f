"""Ctrl-C while a framework waits for a device in native code that does not look at signals.

Python's handler only notes the signal, and the main thread raises ``KeyboardInterrupt`` when it next runs Python. A
main thread that waits in the framework for an event of a device that hangs never does. So a thread of this module wakes
up at each Ctrl-C, gives the main thread a moment, and then fails all pending events: the wait ends with an error, and
the main thread raises the exception. It acts only where Ctrl-C has Python's default handler.
"""

from pjrt.api.waits import note_interruption
from pjrt.capi.export._event import fail_pending

import os
import signal
import threading
import time

cdef extern from "pjrt_support/interrupt.h" nogil:
    bint pjrt_interrupt_watch()
    void pjrt_interrupt_wait()

cdef extern from "Python.h":
    int Py_AddPendingCall(int (*function)(void *) noexcept, void *arg)

PATIENCE_SECONDS = 1.0
"""The time in seconds that the main thread has to see Ctrl-C itself."""

cdef bint _main_thread_runs = False
# The process that the thread runs in: after a fork the child has none.
cdef long _watching = 0


def watch_for_interrupts():
    """Have Ctrl-C reach a main thread that waits for a device in Python; may be called again."""
    global _watching
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    thread = threading.Thread(target=_watch, name="pjrt-interrupts", daemon=True)
    cdef long process = os.getpid()
    # No lock: no other thread runs Python between the test and the assignment, and a lock could deadlock. A thread that
    # starts another waits for its first steps, in which garbage collection may call this function.
    if not pjrt_interrupt_watch() or _watching == process:
        return
    _watching = process
    try:
        thread.start()
    except BaseException:
        _watching = 0
        raise


def _watch():
    while True:
        with nogil:
            pjrt_interrupt_wait()
        note_interruption()
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler and not _main_thread_answers():
            fail_pending("interrupted by Ctrl-C while a framework waited for the device")


cdef bint _main_thread_answers() except -1:
    """Whether the main thread runs Python soon, and so sees the signal itself."""
    global _main_thread_runs
    _main_thread_runs = False
    if Py_AddPendingCall(_note_main_thread, NULL) != 0:
        return True  # its list of pending calls is full: there is no way to ask, and other code waits for it, too
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not _main_thread_runs and time.monotonic() < deadline:
        time.sleep(0.02)
    return _main_thread_runs


cdef int _note_main_thread(void *_) noexcept:
    global _main_thread_runs
    _main_thread_runs = True
    return 0
