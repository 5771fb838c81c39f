"""Ctrl-C while a framework waits for a device in native code that looks at no signals.

Python's handler only notes the signal; the main thread raises ``KeyboardInterrupt`` when it next runs Python. A main
thread that waits in the framework for an event of a device that hangs never does. So a thread of ours is told of each
Ctrl-C, gives the main thread a moment, and then gives up what is pending: the wait ends with an error, and with it the
exception comes. It acts only where Ctrl-C means what it means by default.
"""

from pjrt.api import interruption
from pjrt.capi.export._event import give_up_pending

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
"""The seconds that the main thread may take to see Ctrl-C itself."""

cdef bint _main_thread_runs = False
# The process that has the thread: after a fork the child has none.
cdef long _watching = 0


def watch_for_interrupts():
    """Sees to it that Ctrl-C reaches a main thread that waits for a device of ours; may be called again."""
    global _watching
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    thread = threading.Thread(target=_watch, name="pjrt-interrupts", daemon=True)
    cdef long process = os.getpid()
    # No lock: between the question and the answer no other thread runs Python, and whoever starts a thread waits for its
    # first steps, in which it may collect garbage that has this called.
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
        interruption.note()
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler and not _main_thread_answers():
            give_up_pending("interrupted by Ctrl-C while a framework waited for the device")


cdef bint _main_thread_answers() except -1:
    """Whether the main thread runs Python within a moment, and so sees the signal itself."""
    global _main_thread_runs
    _main_thread_runs = False
    if Py_AddPendingCall(_note_main_thread, NULL) != 0:
        return True  # its list of calls is full: it cannot be told, and others wait for it, too
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not _main_thread_runs and time.monotonic() < deadline:
        time.sleep(0.02)
    return _main_thread_runs


cdef int _note_main_thread(void *_) noexcept:
    global _main_thread_runs
    _main_thread_runs = True
    return 0
