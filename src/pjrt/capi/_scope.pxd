from cpython.ref cimport PyObject

from pjrt.capi._api cimport Api
from pjrt.capi._gen_abi cimport PJRT_Device, PJRT_Memory


cdef extern from "pjrt_support/lanes.h" nogil:
    ctypedef struct pjrt_link:
        pass
    ctypedef struct pjrt_lanes:
        pass
    ctypedef int pjrt_counter
    ctypedef void *pjrt_pointer
    int pjrt_counter_add(pjrt_counter *counter, int number)
    int pjrt_counter_read(pjrt_counter *counter)
    bint pjrt_counter_join(pjrt_counter *counter)
    void *pjrt_pointer_take(pjrt_pointer *pointer)
    bint pjrt_pointer_set_first(pjrt_pointer *pointer, void *value)
    bint pjrt_lanes_closed(pjrt_lanes *lanes)
    void pjrt_lanes_begin_always(pjrt_lanes *lanes)
    bint pjrt_lanes_begin(pjrt_lanes *lanes)
    void pjrt_lanes_end(pjrt_lanes *lanes)
    bint pjrt_lanes_close(pjrt_lanes *lanes)
    bint pjrt_lanes_busy(pjrt_lanes *lanes)
    void pjrt_lanes_add(pjrt_lanes *lanes, pjrt_link *link, PyObject *handle)
    void pjrt_lanes_remove(pjrt_lanes *lanes, pjrt_link *link)
    PyObject *pjrt_lanes_any(pjrt_lanes *lanes, size_t offset, bint *left)


cdef class Native
cdef class Scope(Native)


cdef class Native:
    cdef pjrt_pointer native

    cdef void *use(self) except? NULL
    cdef int call(self, size_t slot, void *args) except -1
    cdef Scope home(self)


cdef class Scope(Native):
    cdef Api api
    cdef pjrt_lanes lanes

    cdef bint is_shut(self) noexcept
    cdef bint try_to_enter(self) noexcept
    cdef int enter(self) except -1
    cdef void leave(self) noexcept
    cdef int close_handles(self) except -1
    cdef object explain(self, object error)


cdef class ClientScope(Scope):
    cdef str platform
    cdef dict devices_by_address
    cdef dict memories_by_address
    cdef object options

    cdef object device_at(self, PJRT_Device *native)
    cdef object memory_at(self, PJRT_Memory *native)


cdef class Borrowed(Native):
    cdef Scope scope


cdef class Handle(Native):
    cdef Scope scope
    cdef size_t destroy_slot
    cdef pjrt_link link

    cdef int open(self, Scope scope, void *native, size_t destroy_slot) except -1
    cdef int hold(self) except -1
    cdef int let_go(self) except -1
    cdef int free(self) except -1
    cdef void *take(self) noexcept
    cdef int retire(self, void *native) except -1
    cdef int destroy(self, void *native) except -1


cdef class ClosableHandle(Handle):
    cdef void *doomed
    cdef pjrt_counter holders

    cdef int _drop_hold(self) except -1


cdef Scope free_scope(Scope scope)
