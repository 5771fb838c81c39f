from cpython.ref cimport PyObject

from pjrt.capi._api cimport Api
from pjrt.capi._gen_abi cimport PJRT_Device, PJRT_Memory


cdef class Native
cdef class Scope(Native)


cdef class Native:
    cdef void *native

    cdef void *use(self) except? NULL
    cdef int call(self, size_t slot, void *args) except -1
    cdef Scope home(self)


cdef class Scope(Native):
    cdef Api api
    cdef bint closed
    cdef int in_flight
    cdef PyObject *first
    cdef object idle

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
    cdef void *doomed
    cdef int busy
    cdef size_t destroy_slot
    cdef PyObject *previous
    cdef PyObject *next

    cdef int open(self, Scope scope, void *native, size_t destroy_slot) except -1
    cdef int hold(self) except -1
    cdef int let_go(self) except -1
    cdef int free(self) except -1
    cdef int destroy(self, void *native) except -1
    cdef void link(self) noexcept
    cdef void unlink(self) noexcept


cdef Scope free_scope(Scope scope)
