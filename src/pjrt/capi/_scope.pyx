"""Ownership: native objects, and the scope (a client, a topology or a plugin) that they live in.

A handle is freed with its Python object, or by hand, or when its scope is closed, whichever comes first; the scope
keeps a list of its handles for that. Scopes outlive their handles because each handle holds its scope, and nothing is
freed while a call that uses it is under way, in whichever thread. All bookkeeping is done while holding the GIL.
"""

cimport cython
from cpython.ref cimport PyObject

from pjrt.capi._api cimport Api
from pjrt.capi._gen_abi cimport PJRT_Device, PJRT_Memory

import threading

from pjrt.api.errors import FailedPreconditionError, ResourceExhaustedError

cdef double _SLICE_SECONDS = 0.5


cdef class Native:
    """An object of the plugin, as what calls are made on."""

    cdef void *use(self) except? NULL:
        """Return the pointer for a call."""
        return self.native

    cdef int call(self, size_t slot, void *args) except -1:
        """Call a function of the plugin for as long as the object may be used."""
        raise NotImplementedError

    cdef Scope home(self):
        """Return the scope that the object lives in."""
        raise NotImplementedError


@cython.no_gc_clear
cdef class Scope(Native):
    """The owner of handles; the scopes of a topology and of a plugin are never closed."""

    cdef int call(self, size_t slot, void *args) except -1:
        self.enter()
        try:
            self.api.call(slot, args)
        except ResourceExhaustedError as error:
            raise self.explain(error) from None
        finally:
            self.leave()
        return 0

    cdef Scope home(self):
        return self

    cdef int enter(self) except -1:
        if self.closed:
            raise FailedPreconditionError("the client was closed; make a new one with plugin.client()")
        self.in_flight += 1
        return 0

    cdef void leave(self) noexcept:
        self.in_flight -= 1
        if self.closed and self.in_flight == 0 and self.idle is not None:
            # A bare lock, whose release runs no Python: the GIL stays here until the caller has put what its call gave
            # in the scope's list, where the closing thread finds it.
            lock, self.idle = self.idle, None
            lock.release()

    cdef object explain(self, error):
        """Return an error with what this scope can add to it."""
        return error

    cdef int close_handles(self) except -1:
        """Refuse new calls, wait for those under way, then free all handles.

        Raises:
            PjrtError: freeing a handle failed. The others were freed all the same, and this is the first error.
        """
        cdef Handle handle
        self.closed = True
        failure = None
        while self.in_flight or self.first != NULL:
            if self.in_flight:
                lock = threading.Lock()
                lock.acquire()
                self.idle = lock
                if self.in_flight:
                    lock.acquire(True, _SLICE_SECONDS)
                continue
            handle = <Handle>self.first  # held: while the plugin frees it another thread may drop the last reference
            try:
                handle.free()
            except Exception as error:
                failure = failure or error
            handle = None
        if failure is not None:
            raise failure
        return 0


@cython.no_gc_clear
cdef class ClientScope(Scope):
    """The scope of a client, with its devices and memories by their address."""

    def __cinit__(self):
        self.devices_by_address = {}
        self.memories_by_address = {}

    cdef object device_at(self, PJRT_Device *native):
        """Return the device behind a pointer of the plugin: the same object each time."""
        raise NotImplementedError

    cdef object memory_at(self, PJRT_Memory *native):
        """Return the memory space behind a pointer of the plugin: the same object each time."""
        raise NotImplementedError


cdef class Borrowed(Native):
    """An object that the plugin owns, and frees with its client or topology."""

    cdef int call(self, size_t slot, void *args) except -1:
        return self.scope.call(slot, args)

    cdef Scope home(self):
        return self.scope


@cython.no_gc_clear
cdef class Handle(Native):
    """A native object that is to be freed, once.

    ``no_gc_clear`` keeps the scope until the handle is freed even where both are in one garbage cycle.
    """

    cdef int open(self, Scope scope, void *native, size_t destroy_slot) except -1:
        """Take a native object over. ``destroy_slot`` is 0 where its owner frees it, or ``destroy`` is overridden."""
        self.scope = scope
        self.native = native
        self.destroy_slot = destroy_slot
        self.link()
        return 0

    def __del__(self):
        # A finalizer, which runs while the object is whole. When __dealloc__ runs, the members of subclasses are gone.
        # Dropping them may have let another thread in, which would find a dying object in the scope's list.
        if self.native != NULL:
            self.free()

    def __dealloc__(self):
        if self.native != NULL:  # it was opened after its finalizer had run
            self.free()

    cdef Scope home(self):
        return self.scope

    cdef void *use(self) except? NULL:
        if self.native == NULL:
            raise FailedPreconditionError(
                f"this {type(self).__name__} was closed, or its client was; it cannot be used any more"
            )
        return self.native

    cdef int call(self, size_t slot, void *args) except -1:
        # As Scope.call, and the handle is not freed meanwhile. Both are written out: this is the hot path.
        self.hold()
        try:
            self.scope.api.call(slot, args)
        except ResourceExhaustedError as error:
            raise self.scope.explain(error) from None
        finally:
            self.let_go()
        return 0

    cdef int hold(self) except -1:
        self.scope.enter()
        self.busy += 1
        return 0

    cdef int let_go(self) except -1:
        cdef void *doomed
        self.busy -= 1
        if self.busy == 0 and self.doomed != NULL:
            doomed = self.doomed
            self.doomed = NULL
            self.destroy(doomed)
        self.scope.leave()
        return 0

    cdef int free(self) except -1:
        """Free the native object, or have the last call under way free it. May be called again."""
        cdef void *native = self.native
        if native == NULL:
            return 0
        self.native = NULL
        self.unlink()
        if self.busy:
            self.doomed = native
            return 0
        self.scope.in_flight += 1
        try:
            self.destroy(native)
        finally:
            self.scope.leave()
        return 0

    cdef int destroy(self, void *native) except -1:
        """Free the native object; the destroy functions of the table are all alike."""
        if self.destroy_slot:
            self.scope.api.drop(self.destroy_slot, native)
        return 0

    cdef void link(self) noexcept:
        self.previous = NULL
        self.next = self.scope.first
        if self.next != NULL:
            (<Handle>self.next).previous = <PyObject *>self
        self.scope.first = <PyObject *>self

    cdef void unlink(self) noexcept:
        if self.previous != NULL:
            (<Handle>self.previous).next = self.next
        elif self.scope.first == <PyObject *>self:
            self.scope.first = self.next
        if self.next != NULL:
            (<Handle>self.next).previous = self.previous
        self.previous = NULL
        self.next = NULL


cdef Scope free_scope(Scope scope):
    """Return a scope that is never closed, for what outlives a client or a topology."""
    cdef Scope free = Scope.__new__(Scope)
    free.api = scope.api
    return free
