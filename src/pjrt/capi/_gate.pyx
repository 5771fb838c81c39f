"""The way into Python for threads of a plugin, and the end of it when the interpreter ends.

Rule for every callback that a plugin may make: enter the gate before taking the GIL, leave it after giving the GIL
back; where the gate is shut, answer without Python. At exit the clients are closed first, while Python still works, so
that plugins can finish what they do; then the gate is shut.
"""

import atexit
import weakref

from pjrt.api.waits import time_left

cdef extern from "pjrt_support/gate.h" nogil:
    ctypedef struct pjrt_gate:
        pass
    bint pjrt_gate_enter(pjrt_gate *gate)
    void pjrt_gate_leave(pjrt_gate *gate)
    bint pjrt_gate_shut(pjrt_gate *gate, int milliseconds)

# Callbacks that are inside get this long to leave, even where no other time is left.
cdef double _LEAST_PATIENCE_SECONDS = 0.2
cdef pjrt_gate _gate

close_at_exit = weakref.WeakSet()
"""Objects whose method ``_close_at_exit`` is called before the gate is shut."""


cdef bint gate_enter() noexcept nogil:
    return pjrt_gate_enter(&_gate)


cdef void gate_leave() noexcept nogil:
    pjrt_gate_leave(&_gate)


def shut():
    """Close what is open, and turn callbacks away from now on."""
    for open_thing in list(close_at_exit):
        try:
            open_thing._close_at_exit()
        except Exception as error:
            import sys

            sys.stderr.write(f"pjrt: {open_thing!r} could not be closed at exit: {error}\n")
    cdef int patience = <int>(1000 * max(time_left(), _LEAST_PATIENCE_SECONDS))
    with nogil:
        pjrt_gate_shut(&_gate, patience)


atexit.register(shut)
