"""Ctrl-C while a framework waits for a device in native code that does not look at signals.

Python's handler only notes the signal, and the main thread raises ``KeyboardInterrupt`` when it next runs Python. A
main thread that waits in the framework for an event of a device that hangs never does. So a thread of this module wakes
up at each Ctrl-C, gives the main thread a moment, and then has devices give up what is awaited: the wait ends with an
error, and the main thread raises the exception. Where the main thread sees it by itself, what was in flight is given up
once nobody holds its results. It acts only where Ctrl-C has Python's default handler.
"""

from pjrt.api.waits import forget_variables, note_interruption

import logging
import os
import signal
import threading
import time

cdef extern from "pjrt_support/interrupt.h" nogil:
    bint pjrt_interrupt_watch()
    void pjrt_interrupt_wait()

cdef extern from "Python.h":
    int Py_AddPendingCall(int (*function)(void *) noexcept, void *arg)

PRESSED, UNHELD, AWAITED = 0, 1, 2

PATIENCE_SECONDS = 1.0
"""The time in seconds that the main thread has to see Ctrl-C itself, and then to let go of the results."""

cdef bint _main_thread_runs = False
# The process that the thread runs in: after a fork the child has none.
cdef long _watching = 0
cdef list _functions = []


def watch_for_interrupts(give_up):
    """Have Ctrl-C reach a main thread that waits for a device.

    Args:
        give_up: a function of one of these: ``PRESSED`` Ctrl-C was pressed, ``UNHELD`` give up what was in flight then
            and whose results nobody holds, or ``AWAITED`` give up all that was in flight then, because the main thread
            waits for it. It is called on another thread, and is added once.
    """
    global _watching
    if give_up not in _functions:
        _functions.append(give_up)
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
        _call(PRESSED)
        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            continue
        if not _main_thread_answers():
            _call(AWAITED)
            continue
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            time.sleep(0.05)
            forget_variables()
            _call(UNHELD)


def _call(stage):
    for give_up in _functions[:]:
        try:
            give_up(stage)
        except Exception:
            logging.getLogger("pjrt").exception("a device did not give up at Ctrl-C")


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
