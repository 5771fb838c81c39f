"""Ownership: native objects, and the scope (a client, a topology or a plugin) that they live in.

A handle is freed with its Python object, or by hand, or when its scope is closed, whichever comes first; the scope
keeps a list of its handles for that. Scopes outlive their handles because each handle holds its scope, and nothing is
freed while a call that uses it is under way, in whichever thread. The bookkeeping (``pjrt_support/lanes.h``) is right
with the GIL and without.
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from cpython.ref cimport Py_DECREF, PyObject

from pjrt.capi._api cimport Api
from pjrt.capi._gen_abi cimport PJRT_Device, PJRT_Memory

from pjrt.api.errors import FailedPreconditionError, ResourceExhaustedError

cdef extern from "pjrt_support/system.h" nogil:
    void pjrt_sleep(double seconds)

# How long a thread that closes a scope sleeps between two looks at the calls under way: longer from look to look.
cdef double _FIRST_SLEEP_SECONDS = 20e-6
cdef double _LONGEST_SLEEP_SECONDS = 5e-3


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

    cdef bint is_shut(self) noexcept:
        """Whether new calls are refused, because the scope was closed."""
        return pjrt_lanes_closed(&self.lanes)

    cdef bint try_to_enter(self) noexcept:
        """Count a call that begins; return False, and count nothing, where new calls are refused."""
        return pjrt_lanes_begin(&self.lanes)

    cdef int enter(self) except -1:
        if not pjrt_lanes_begin(&self.lanes):
            raise FailedPreconditionError("the client was closed; make a new one with plugin.client()")
        return 0

    cdef void leave(self) noexcept:
        pjrt_lanes_end(&self.lanes)

    cdef object explain(self, error):
        """Return an error with what this scope can add to it."""
        return error

    cdef int close_handles(self) except -1:
        """Wait for the calls under way in a scope that refuses new ones, then free all handles.

        Raises:
            PjrtError: freeing a handle failed. The others were freed all the same, and this is the first error.
        """
        cdef Handle handle
        cdef PyObject *listed
        cdef bint left = True
        cdef double pause = _FIRST_SLEEP_SECONDS
        failure = None
        # Calls may add handles until they end. Those that free one take it off the list first, and are counted meanwhile.
        while pjrt_lanes_busy(&self.lanes) or left:
            if not pjrt_lanes_busy(&self.lanes):
                listed = pjrt_lanes_any(&self.lanes, _LINK_OFFSET, &left)
                if listed != NULL:
                    handle = <Handle>listed
                    Py_DECREF(handle)
                    try:
                        handle.free()
                    except Exception as error:
                        failure = failure or error
                    handle = None
                    continue
                if not left:
                    continue
            PyErr_CheckSignals()
            with nogil:
                pjrt_sleep(pause)
            pause = min(2 * pause, _LONGEST_SLEEP_SECONDS)
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
        pjrt_lanes_add(&scope.lanes, &self.link, <PyObject *>self)
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
        """Begin a use. The caller has a reference to the handle, and the scope stays open: nothing else frees it."""
        return self.scope.enter()

    cdef int let_go(self) except -1:
        """End a use."""
        self.scope.leave()
        return 0

    cdef int free(self) except -1:
        """Free the native object, or have the last call under way free it. May be called again."""
        cdef void *native
        if self.native == NULL:
            return 0
        pjrt_lanes_begin_always(&self.scope.lanes)
        try:
            native = self.take()
            if native != NULL:
                self.retire(native)
        finally:
            self.scope.leave()
        return 0

    cdef void *take(self) noexcept:
        """Return the native object to the one caller who gets it, and take the handle off the scope's list."""
        cdef void *native = pjrt_pointer_take(&self.native)
        if native != NULL:
            pjrt_lanes_remove(&self.scope.lanes, &self.link)
        return native

    cdef int retire(self, void *native) except -1:
        """Free the native object that was taken."""
        return self.destroy(native)

    cdef int destroy(self, void *native) except -1:
        """Free the native object; the destroy functions of the table are all alike."""
        if self.destroy_slot:
            self.scope.api.drop(self.destroy_slot, native)
        return 0


@cython.no_gc_clear
cdef class ClosableHandle(Handle):
    """A handle that its user may free by hand, also while another thread calls it: the last of them frees the object."""

    cdef int open(self, Scope scope, void *native, size_t destroy_slot) except -1:
        self.holders = 1
        return Handle.open(self, scope, native, destroy_slot)

    cdef int hold(self) except -1:
        Handle.hold(self)
        if not pjrt_counter_join(&self.holders):
            Handle.let_go(self)
            self.use()  # raises: nothing is left to hold
        return 0

    cdef int let_go(self) except -1:
        try:
            self._drop_hold()
        finally:
            Handle.let_go(self)
        return 0

    cdef int retire(self, void *native) except -1:
        self.doomed = native
        return self._drop_hold()

    cdef int _drop_hold(self) except -1:
        if pjrt_counter_add(&self.holders, -1) == 0:
            self.destroy(self.doomed)
        return 0


cdef size_t _link_offset():
    cdef Handle handle = Handle.__new__(Handle)
    return <size_t>&handle.link - <size_t><PyObject *>handle


# Where a handle's link lies in the handle.
cdef size_t _LINK_OFFSET = _link_offset()


cdef Scope free_scope(Scope scope):
    """Return a scope that is never closed, for what outlives a client or a topology."""
    cdef Scope free = Scope.__new__(Scope)
    free.api = scope.api
    return free
