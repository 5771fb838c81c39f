"""Pins: they hold a scope open over more than one call: from before a call until its result is in the scope's list.

Without that, another thread could close the client in between, and the result would outlive it.
"""

cimport cython

from pjrt.capi._scope cimport Scope


@cython.no_gc
@cython.freelist(16)
cdef class Pin:
    """Holds a scope open for as long as the object lives: a local variable, until the function returns."""

    @staticmethod
    cdef Pin of(Scope scope):
        scope.enter()
        cdef Pin pin = Pin.__new__(Pin)
        pin.scope = scope
        return pin

    def __dealloc__(self):
        if self.scope is not None:
            self.scope.leave()
